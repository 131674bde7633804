// Training on replicas of a GPU: equal to one replica, to the CPU and to itself. Several replicas
// share the first GPU, so that one card shows all of it; without one every case says SKIPPED.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "lockstep/core/check.h"
#include "step/placed_training.h"
#include "step/world_training.h"

namespace lockstep::test {
namespace {

bool no_gpu() {
  if (cuda_device_count() > 0) return false;
  MESSAGE("SKIPPED: no CUDA device answers");
  return true;
}

std::vector<Device> replicas_of_gpu(int count) {
  std::vector<Device> devices;
  for (int slot = 0; slot < count; ++slot) devices.push_back({DeviceKind::kCuda, 0, slot});
  return devices;
}

Outcome trained_outcome(const DataParallelOptions& options) {
  const auto run = make_toy(options);
  Outcome result = outcome_of(*run, train(*run));
  for (int rank = 1; rank < run->size(); ++rank) {
    CHECK(parameters(*run, rank) == result.parameters);
    if (options.norm.options.mode == BatchNormMode::kSync) {
      CHECK(statistics(*run, rank) == result.statistics);
    }
  }
  return result;
}

DataParallelOptions on_gpu(int ranks, BatchNormMode mode, TransportKind transport) {
  DataParallelOptions options = toy_options(ranks, mode);
  options.devices = replicas_of_gpu(ranks);
  options.communicator.transport = transport;
  return options;
}

void check_within(const Outcome& a, const Outcome& b, double tolerance) {
  CHECK(distance(a.parameters, b.parameters) < tolerance);
  CHECK(distance(a.statistics, b.statistics) < tolerance);
  for (std::size_t step = 0; step < a.losses.size(); ++step) {
    CHECK(a.losses[step] == doctest::Approx(b.losses[step]).epsilon(tolerance));
  }
}

TEST_CASE("one replica on the GPU trains as one on the CPU") {
  if (no_gpu()) return;
  check_within(trained_outcome(on_gpu(1, BatchNormMode::kLocal, TransportKind::kEvent)),
               trained_outcome(toy_options(1, BatchNormMode::kLocal)), 2e-4);
}

// TF32 is what a training takes where nothing is said (run.tf32). It rounds factors to 10 bits:
// by at most 2^-11 of themselves, five hundredths of a percent.
TEST_CASE("one replica that rounds to TF32 trains as one that does not, within its ten bits") {
  if (no_gpu()) return;
  DataParallelOptions rounding = on_gpu(1, BatchNormMode::kLocal, TransportKind::kEvent);
  rounding.backend.tf32 = true;
  check_within(trained_outcome(rounding),
               trained_outcome(on_gpu(1, BatchNormMode::kLocal, TransportKind::kEvent)), 2e-2);
}

TEST_CASE("sync on N replicas of a GPU is one replica with the whole batch") {
  if (no_gpu()) return;
  const Outcome whole = trained_outcome(on_gpu(1, BatchNormMode::kLocal, TransportKind::kEvent));
  for (const int ranks : {2, 4, 8}) {
    CAPTURE(ranks);
    check_within(trained_outcome(on_gpu(ranks, BatchNormMode::kSync, TransportKind::kEvent)), whole,
                 2e-4);
  }
}

TEST_CASE("virtual on one replica is local on several") {
  if (no_gpu()) return;
  DataParallelOptions slices = on_gpu(1, BatchNormMode::kGhost, TransportKind::kEvent);
  slices.norm.options.virtual_devices = 4;
  check_within(trained_outcome(slices),
               trained_outcome(on_gpu(4, BatchNormMode::kLocal, TransportKind::kEvent)), 2e-4);
}

TEST_CASE("the transports give the same bits, and so do two runs, one with delays") {
  if (no_gpu()) return;
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    const Outcome event =
        trained_outcome(on_gpu(ranks, BatchNormMode::kSync, TransportKind::kEvent));
    CHECK(trained_outcome(on_gpu(ranks, BatchNormMode::kSync, TransportKind::kHost)) == event);
    DataParallelOptions delayed = on_gpu(ranks, BatchNormMode::kSync, TransportKind::kEvent);
    delayed.communicator.hook = [](int rank, const SyncCall& call) {
      Rng rng(3, RngPurpose::kTest, static_cast<std::uint64_t>(rank),
              static_cast<std::uint32_t>(call.channels));
      std::this_thread::sleep_for(std::chrono::microseconds(rng.below(500)));
      return true;
    };
    CHECK(trained_outcome(delayed) == event);
  }
}

/// Six steps, the fourth one on a smaller batch.
Outcome trained_long(const DataParallelOptions& options) {
  const auto run = make_toy(options);
  std::vector<double> losses;
  for (std::int64_t step = 0; step < 6; ++step) {
    const Batch batch = toy_batch(step == 3 ? 4 : 5, step);
    losses.push_back(run->train_step(batch, step, 0.05F / static_cast<float>(1 + step)).loss);
  }
  Outcome result = outcome_of(*run, std::move(losses));
  for (const auto& layer : run->replica(0).store().batch_norms()) {
    result.statistics.push_back(static_cast<float>(layer->num_batches_tracked));
  }
  return result;
}

void check_graph(int ranks, BatchNormMode mode) {
  DataParallelOptions options = on_gpu(ranks, mode, TransportKind::kEvent);
  const Outcome issued = trained_long(options);
  options.cuda_graph = true;
  CHECK(trained_long(options) == issued);
}

// Apart: cuDNN's calls inside a capture, then a capture of several streams, then exchanges in it.
TEST_CASE("a graph of one replica replays the bits of an issued step") {
  if (!no_gpu()) check_graph(1, BatchNormMode::kGhost);
}

TEST_CASE("a graph of several local replicas replays the bits of an issued step") {
  if (!no_gpu()) check_graph(2, BatchNormMode::kLocal);
}

TEST_CASE("a graph of several synchronized replicas replays the bits of an issued step") {
  if (!no_gpu()) check_graph(4, BatchNormMode::kSync);
}

// Images whose values are worth the way to the host.
TEST_CASE("what waits on the host comes back with its bits, issued and recorded") {
  if (no_gpu()) return;
  const Size size{40, 40};
  const auto trained = [&](bool offload, bool graph) {
    DataParallelOptions options = on_gpu(2, BatchNormMode::kSync, TransportKind::kEvent);
    options.input = {6, size.height, size.width, 3};
    options.offload = offload;
    options.cuda_graph = graph;
    const auto run = make_toy(options);
    CHECK((run->replica(0).network().offloaded_bytes() > 0) == offload);
    std::vector<double> losses;
    for (std::int64_t step = 0; step < 3; ++step) {
      losses.push_back(run->train_step(toy_batch(6, step, size), step, 0.05F).loss);
    }
    return outcome_of(*run, std::move(losses));
  };
  const Outcome kept = trained(false, false);
  CHECK(trained(true, false) == kept);
  CHECK(trained(true, true) == kept);
}

// Processes are threads here, which share the GPU.
TEST_CASE("two processes of two replicas end at the bits of one of four") {
  if (no_gpu()) return;
  for (const BatchNormMode mode : {BatchNormMode::kSync, BatchNormMode::kLocal}) {
    const auto on = [mode](int ranks, int) { return on_gpu(ranks, mode, TransportKind::kHost); };
    DataParallel one(on(4, 0));
    const std::vector<double> losses = train(one);
    with_processes({2, 2}, on, [&](DataParallel& run) {
      CHECK(train(run) == losses);
      const int first = run.rank_layout().first_rank();
      for (int rank = first; rank < first + 2; ++rank) {
        CHECK(parameters(run, rank) == parameters(one, rank));
        CHECK(statistics(run, rank) == statistics(one, rank));
      }
    });
  }
}

DataParallelOptions placed_on_gpu(int ranks) {
  DataParallelOptions options = placed_options(ranks, Sgd{.weight_decay = 1e-3F});
  options.devices = replicas_of_gpu(ranks);
  options.placement_invariant = true;
  return options;
}

TEST_CASE("placement: sync comes to the same bits on any number of replicas of a GPU") {
  if (no_gpu()) return;
  const Placed whole = trained_in_steps(placed_on_gpu(1));
  for (const int ranks : {2, 3, 4, 8}) {
    CAPTURE(ranks);
    CHECK((trained_in_steps(placed_on_gpu(ranks)) == whole));
  }
  DataParallelOptions host = placed_on_gpu(3);
  host.communicator.transport = TransportKind::kHost;
  CHECK((trained_in_steps(host) == whole));
  const Placed on_cpu = trained_in_steps(placed_options(1, Sgd{.weight_decay = 1e-3F}));
  check_within(whole.outcome, on_cpu.outcome, 2e-4);
}

TEST_CASE("placement: a graph of any number of replicas replays the same bits") {
  if (no_gpu()) return;
  const Placed whole = trained_in_steps(placed_on_gpu(1));
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    DataParallelOptions options = placed_on_gpu(ranks);
    options.cuda_graph = true;
    CHECK((trained_in_steps(options) == whole));
  }
}

TEST_CASE("placement: the same bits in fp16, with AdamW") {
  if (no_gpu()) return;
  const auto options = [](int ranks) {
    DataParallelOptions result = placed_on_gpu(ranks);
    result.optimizer = AdamW{};
    result.precision = DType::kFloat16;
    result.loss_scale = LossScaleOptions{.initial = 1024};
    return result;
  };
  const Placed whole = trained_in_steps(options(1));
  for (const int ranks : {3, 4}) {
    CAPTURE(ranks);
    CHECK((trained_in_steps(options(ranks)) == whole));
  }
}

/// Replicas also meet outside of BatchNorm, and values are learnt beside classes.
Outputs sums_and_values(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  x = net.conv2d(x, "stem", {.out_channels = 6, .kernel = 3, .padding = 1});
  x = norm(net, x, "bn", {.relu = true});
  Value* all = net.linear(net.all_reduce(net.adaptive_avg_pool2d(x, 1, 1)), "all", 6);
  x = net.add(x, net.upsample_bilinear(all, kSize.height, kSize.width, false));
  Value* values = net.conv2d(x, "values", {.out_channels = 2, .bias = true});
  return {{"out", net.conv2d(x, "head", {.out_channels = kClasses, .bias = true})},
          {"values", net.adaptive_avg_pool2d(values, 3, 5)}};
}

Outcome trained_on_values(DataParallelOptions options, bool with_graph = false) {
  options.model = sums_and_values;
  options.losses.push_back({"values", MeanSquaredErrorLoss{.weight = 2}});
  options.cuda_graph = with_graph;
  const auto run = make_toy(options);
  std::vector<double> losses;
  for (std::int64_t step = 0; step < 4; ++step) {
    Batch batch = toy_batch(step == 2 ? 4 : 5, step);
    Rng rng(4, RngPurpose::kTest, static_cast<std::uint64_t>(step));
    std::vector<float>& targets = batch.targets["values"];
    targets.resize(static_cast<std::size_t>(batch.count()) * 3 * 5 * 2);
    for (float& target : targets) target = rng.normal();
    losses.push_back(run->train_step(batch, step, 0.001F).loss);
  }
  return outcome_of(*run, std::move(losses));
}

TEST_CASE("placement: mean squared error and all_reduce") {
  if (no_gpu()) return;
  const auto on = [](int ranks) {
    DataParallelOptions options = on_gpu(ranks, BatchNormMode::kSync, TransportKind::kEvent);
    options.placement_invariant = true;
    return trained_on_values(options);
  };
  const Outcome whole = on(1);
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    CHECK((on(ranks) == whole));
  }
}

TEST_CASE("mean squared error and all_reduce: on replicas of a GPU as on one CPU device") {
  if (no_gpu()) return;
  for (const int accumulate : {1, 2}) {
    const auto on = [&](int ranks, TransportKind transport) {
      DataParallelOptions options = on_gpu(ranks, BatchNormMode::kSync, transport);
      options.accumulate = accumulate;
      return options;
    };
    DataParallelOptions cpu = toy_options(1, BatchNormMode::kSync);
    cpu.accumulate = accumulate;
    const Outcome expected = trained_on_values(cpu);
    check_within(trained_on_values(on(1, TransportKind::kEvent)), expected, 2e-4);
    const Outcome three = trained_on_values(on(3, TransportKind::kEvent));
    check_within(three, expected, 2e-4);
    CHECK(trained_on_values(on(3, TransportKind::kHost)) == three);
    if (accumulate == 1) CHECK(trained_on_values(on(3, TransportKind::kEvent), true) == three);
  }
}

// NCCL with one rank is the identity: the bits must be the owner's.
TEST_CASE("gradients summed by NCCL, on every GPU there is") {
  if (no_gpu()) return;
  const int gpus = std::min(cuda_device_count(), 8);
  DataParallelOptions options = toy_options(gpus, BatchNormMode::kSync);
  for (int rank = 0; rank < gpus; ++rank) options.devices[rank] = {DeviceKind::kCuda, rank, 0};
  const Outcome owner = trained_outcome(options);
  for (const std::size_t bucket_bytes : {std::size_t{1}, std::size_t{3000}}) {
    options.gradient_exchange = {GradientExchangeKind::kAllReduce, bucket_bytes, bucket_bytes};
    for (const TransportKind transport : {TransportKind::kEvent, TransportKind::kNccl}) {
      options.communicator.transport = transport;
      const Outcome sums = trained_outcome(options);
      check_within(sums, owner, 1e-5);
      if (gpus == 1) CHECK(sums == owner);
      CHECK(trained_outcome(options) == sums);
    }
  }
}

TEST_CASE("replicas that share a GPU cannot sum by NCCL") {
  if (no_gpu()) return;
  DataParallelOptions options = on_gpu(2, BatchNormMode::kSync, TransportKind::kEvent);
  options.gradient_exchange.kind = GradientExchangeKind::kAllReduce;
  CHECK_THROWS_AS(make_toy(options), ConfigError);
}

TEST_CASE("a replica that throws ends the step of all") {
  if (no_gpu()) return;
  DataParallelOptions options = on_gpu(4, BatchNormMode::kSync, TransportKind::kEvent);
  options.communicator.hook = [](int rank, const SyncCall& call) {
    if (rank == 2 && call.direction == Direction::kBackward) throw Error("broken on purpose");
    return true;
  };
  const auto run = make_toy(options);
  CHECK_THROWS_WITH_AS(train(*run), doctest::Contains("broken on purpose"), ReplicaError);
}

}  // namespace
}  // namespace lockstep::test
