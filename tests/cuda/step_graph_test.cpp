// Recorded steps, and batches ahead of their steps, on the fake runtime, which does the nodes of a
// graph in any order that its edges allow, and sees when two threads add to it at the same time.

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <limits>
#include <thread>

#include "app/bench/bench.h"
#include "cuda/fake_runtime.h"
#include "kernels/dispatch.h"
#include "kernels/operations/gpu_operations.h"
#include "lockstep/core/check.h"
#include "step/toy_training.h"
#include "support/errors.h"

namespace lockstep::test {
namespace {

DataParallelOptions on_gpus(int ranks, int gpus, BatchNormMode mode) {
  DataParallelOptions options = toy_options(ranks, mode);
  for (int rank = 0; rank < ranks; ++rank) {
    options.devices[rank] = {DeviceKind::kCuda, rank % gpus, rank / gpus};
  }
  return options;
}

struct DelayedTraining {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> parameters;  // [rank]

  bool operator==(const DelayedTraining&) const = default;
};

DelayedTraining trained_with_delays(const DataParallelOptions& options) {
  const auto run = make_toy(options);
  DelayedTraining result;
  auto& slow = dynamic_cast<gpu::GpuOperations&>(run->replica(1).backend());
  for (std::int64_t step = 0; step < 5; ++step) {
    // Late enough to come after nodes that read the images, if these do not wait.
    const auto delay = std::chrono::milliseconds(step == 3 ? 200 : 0);
    fake_runtime::enqueue(slow.stream(), [delay] { std::this_thread::sleep_for(delay); });
    const StepResult done = run->train_step(toy_batch(5, step), step, 0.05F);
    result.losses.push_back(done.loss);
    result.norms.push_back(done.grad_norm);
  }
  for (int rank = 0; rank < run->size(); ++rank) {
    result.parameters.push_back(parameters(*run, rank));
  }
  return result;
}

TEST_CASE("a graph over several GPUs has the bits of issued steps, with and without peer access") {
  for (const Optimizer& optimizer : {Optimizer(Sgd{.weight_decay = 1e-3F}), Optimizer(AdamW{})}) {
    CAPTURE(optimizer_name(optimizer));
    DelayedTraining reached;  // with peer access
    for (const bool peer_access : {true, false}) {
      CAPTURE(peer_access);
      fake_runtime::use({.devices = 2, .peer_access = peer_access});
      DataParallelOptions options = on_gpus(4, 2, BatchNormMode::kSync);
      options.optimizer = optimizer;
      const DelayedTraining issued = trained_with_delays(options);
      if (peer_access) reached = issued;
      CHECK(issued == reached);
      CHECK(issued.norms.back() > 0);
      CHECK(issued.norms.back() != issued.norms.front());
      options.cuda_graph = true;
      CHECK(trained_with_delays(options) == issued);
    }
  }
}

TEST_CASE("a graph over four GPUs has the bits of issued steps") {
  for (const bool peer_access : {true, false}) {
    CAPTURE(peer_access);
    fake_runtime::use({.devices = 4, .peer_access = peer_access});
    DataParallelOptions options = on_gpus(4, 4, BatchNormMode::kSync);
    options.gradient_exchange.kind = GradientExchangeKind::kOwner;
    const DelayedTraining issued = trained_with_delays(options);
    options.cuda_graph = true;
    CHECK(trained_with_delays(options) == issued);
  }
}

// Peers read statistics in place: on the device, and where they cannot reach that, on the host.
TEST_CASE("exchanges of statistics add nothing to a graph but edges") {
  constexpr int kRanks = 4;
  const auto nodes = [](bool peer_access, BatchNormMode mode) {
    fake_runtime::use({.devices = 2, .peer_access = peer_access});
    DataParallelOptions options = on_gpus(kRanks, 2, mode);
    options.cuda_graph = true;
    options.input =
        options.input.with_batch(kRanks);  // an image each: all have the same work in all modes
    const auto run = make_toy(options);
    for (std::int64_t step = 0; step < 2; ++step) {
      static_cast<void>(run->train_step(toy_batch(kRanks, step), step, 0.05F));
    }
    return fake_runtime::last_graph();
  };
  const fake_runtime::GraphNodes sync = nodes(true, BatchNormMode::kSync);
  CHECK(sync.kernels > 0);
  CHECK(sync == nodes(true, BatchNormMode::kLocal));
  MESSAGE("a step of ", kRanks, " replicas: ", sync.kernels, " kernels, ", sync.copies, " copies, ",
          sync.fills, " fills");
  CHECK(nodes(false, BatchNormMode::kSync) == nodes(false, BatchNormMode::kLocal));
}

// Each replica waits for each; from four GPUs on all meet in one node.
TEST_CASE("recorded exchanges of many GPUs have two edges for each of them") {
  constexpr int kExchanges = 2 * 6;  // of as many layers
  const auto edges = [](int gpus, BatchNormMode mode) {
    fake_runtime::use({.devices = gpus});
    DataParallelOptions options = on_gpus(gpus, gpus, mode);
    options.gradient_exchange.kind = GradientExchangeKind::kOwner;
    options.cuda_graph = true;
    options.input = options.input.with_batch(gpus);
    const auto run = make_toy(options);
    static_cast<void>(run->train_step(toy_batch(gpus, 0), 0, 0.05F));
    static_cast<void>(run->train_step(toy_batch(gpus, 1), 1, 0.05F));
    return fake_runtime::edges_between_devices_of_last_graph();
  };
  for (const int gpus : {1, 2, 4, 8}) {
    CAPTURE(gpus);
    const int meetings = edges(gpus, BatchNormMode::kSync) - edges(gpus, BatchNormMode::kLocal);
    const bool joined = gpus >= 4;
    CHECK(fake_runtime::last_graph().empty == 0);  // of kLocal
    CHECK(meetings == kExchanges * (joined ? 2 * (gpus - 1) : gpus * (gpus - 1)));
  }
}

TEST_CASE("a run that fails keeps every replica's memory until no GPU reads it") {
  fake_runtime::use({.devices = 2});
  DataParallelOptions options = on_gpus(4, 2, BatchNormMode::kSync);
  options.communicator.hook = [](int rank, const SyncCall& call) {
    if (rank == 2 && call.direction == Direction::kBackward) throw Error("broken on purpose");
    return true;
  };
  const auto run = make_toy(options);
  auto& slow = dynamic_cast<gpu::GpuOperations&>(run->replica(1).backend());
  fake_runtime::enqueue(slow.stream(),
                        [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
  CHECK_THROWS_WITH_AS(static_cast<void>(run->train_step(toy_batch(5, 0), 0, 0.05F)),
                       doctest::Contains("broken on purpose"), ReplicaError);
}

TEST_CASE("the chains that an exchange is timed by can be recorded") {
  fake_runtime::use({.devices = 1});
  const std::vector<Device> devices = on_gpus(2, 1, BatchNormMode::kSync).devices;
  CHECK(captured_exchange_microseconds(devices, 16, 3, 2).size() == 2);
  CHECK(fake_runtime::last_graph() == fake_runtime::GraphNodes{.kernels = 2 * 2 * 3});
  CHECK(captured_exchange_microseconds(toy_options(2, BatchNormMode::kSync).devices, 16, 3, 2)
            .empty());
}

std::int64_t dependent_launches_of_step(int major, BatchNormMode mode) {
  fake_runtime::use({.devices = 1, .compute_capability = major});
  const auto run = make_toy(on_gpus(2, 1, mode));
  const std::int64_t before = emulation::dependent_launches();
  static_cast<void>(run->train_step(toy_batch(5, 0), 0, 0.05F));
  return emulation::dependent_launches() - before;
}

TEST_CASE("BatchNorm's kernels start early where the GPU and the streams let them") {
  constexpr int kLayers = 6, kRanks = 2;
  CHECK(dependent_launches_of_step(8, BatchNormMode::kLocal) == 0);
  CHECK(dependent_launches_of_step(9, BatchNormMode::kLocal) == 4 * kLayers * kRanks);
  CHECK(dependent_launches_of_step(9, BatchNormMode::kSync) == 2 * kLayers * kRanks);
  setenv("LOCKSTEP_DEPENDENT_LAUNCH", "0", 1);
  CHECK(dependent_launches_of_step(9, BatchNormMode::kLocal) == 0);
  unsetenv("LOCKSTEP_DEPENDENT_LAUNCH");
}

TEST_CASE("a recorded step reads its scalars anew, and leaves weights alone after a bad loss") {
  fake_runtime::use({.devices = 1});
  DataParallelOptions options = on_gpus(2, 1, BatchNormMode::kSync);
  options.cuda_graph = true;
  const auto run = make_toy(options);
  for (std::int64_t step = 0; step < 3; ++step) {
    static_cast<void>(run->train_step(toy_batch(5, step), step, 0.05F));
  }
  const std::vector<float> before = parameters(*run, 1);
  Batch bad = toy_batch(5, 3);
  bad.images[7] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_AS(static_cast<void>(run->train_step(bad, 3, 0.05F)), NonFiniteError);
  CHECK(parameters(*run, 1) == before);
  static_cast<void>(run->train_step(toy_batch(5, 4), 4, 0.05F));
  CHECK(parameters(*run, 1) != before);
}

TEST_CASE("batches that are staged ahead of their steps come in the right order") {
  fake_runtime::use({.devices = 1, .upload_milliseconds = 5});
  const DataParallelOptions options = on_gpus(2, 1, BatchNormMode::kSync);
  const auto plain = make_toy(options), staging = make_toy(options);
  auto& slow = dynamic_cast<gpu::GpuOperations&>(staging->replica(1).backend());
  for (std::int64_t step = 0; step < 4; ++step) {
    // A batch that did not wait for its predecessor to be taken would overwrite it.
    fake_runtime::enqueue(slow.stream(),
                          [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
    staging->begin_step(toy_batch(5, step), step, 0.05F);
    staging->stage_next(toy_batch(5, step + 1));
    CHECK(staging->finish_step().loss == plain->train_step(toy_batch(5, step), step, 0.05F).loss);
    if (step == 1) staging->forward(toy_batch(4, 9));
  }
  CHECK(parameters(*staging, 0) == parameters(*plain, 0));
  CHECK_THROWS_WITH_AS(static_cast<void>(staging->train_step(toy_batch(3, 0), 4, 0.05F)),
                       doctest::Contains("another batch"), Error);
}

// A full batch may come in parts of other sizes than those that were recorded.
TEST_CASE("a recorded step is replayed for parts of its own sizes only") {
  fake_runtime::use({.devices = 1});
  const auto trained_in_parts = [](bool invariant, bool graph) {
    DataParallelOptions options = on_gpus(2, 1, BatchNormMode::kSync);
    options.placement_invariant = invariant;
    options.cuda_graph = graph;
    const auto run = make_toy(options);
    std::vector<double> losses;
    for (std::int64_t step = 0; step < 6; ++step) {
      const std::int64_t first = step % 3 == 2 ? 2 : 3;
      const std::vector<Batch> batches{toy_batch(first, step), toy_batch(5 - first, step + 10)};
      losses.push_back(run->train_step(batches, step, 0.05F).loss);
    }
    return outcome_of(*run, losses);
  };
  for (const bool invariant : {false, true}) {
    CAPTURE(invariant);
    CHECK((trained_in_parts(invariant, true) == trained_in_parts(invariant, false)));
  }
}

TEST_CASE("a step that is to be recorded leaves gradients to their owners, also over PCIe") {
  for (const bool peer_access : {true, false}) {
    CAPTURE(peer_access);
    fake_runtime::use({.devices = 2, .peer_access = peer_access, .links = false});
    DataParallelOptions options = on_gpus(2, 2, BatchNormMode::kSync);
    options.cuda_graph = true;
    const DelayedTraining recorded = trained_with_delays(options);
    options.cuda_graph = false;
    options.gradient_exchange.kind = GradientExchangeKind::kOwner;
    CHECK(trained_with_delays(options) == recorded);
  }
}

TEST_CASE("what cannot be recorded is refused with a way out") {
  fake_runtime::use({.devices = 1});
  DataParallelOptions options = on_gpus(2, 1, BatchNormMode::kSync);
  options.cuda_graph = true;
  DataParallelOptions host = options, cumulative = options, faults = options, cpus = options;
  host.communicator.transport = TransportKind::kHost;
  cumulative.norm.options.momentum.reset();
  faults.communicator.hook = [](int, const SyncCall&) { return true; };
  cpus.devices = toy_options(2, BatchNormMode::kSync).devices;
  for (const DataParallelOptions& refused : {host, cumulative, faults, cpus}) {
    CHECK_THROWS_WITH_AS(make_toy(refused), doctest::Contains("cuda_graph"), ConfigError);
  }
}

}  // namespace
}  // namespace lockstep::test
