// Several processes (threads here) with replicas on GPUs of the fake runtime train as one process
// with all of them: the same bytes, whatever of it passes through the hosts.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <thread>

#include "cuda/fake_nccl.h"
#include "cuda/fake_runtime.h"
#include "kernels/operations/gpu_operations.h"
#include "lockstep/core/check.h"
#include "step/placed_training.h"
#include "step/world_training.h"

namespace lockstep::test {
namespace {

/// Everything that a training comes to, of the ranks of all processes.
struct WorldTraining {
  std::vector<std::vector<float>> parameters, statistics;  // [rank]
  std::vector<double> losses, norms;                       // norms: 0 of skipped steps
  std::vector<LossScaleState> scales;                      // [step], with a loss scale
  OptimizerState optimizer;

  bool operator==(const WorldTraining&) const = default;
};

/// Options of a process whose first rank is `first`: as `all`, on GPUs that it sees alone. A
/// process's own machine numbers its GPUs from 0 on.
ProcessOptions on_gpus(const DataParallelOptions& all, int gpus) {
  return [all, gpus](int devices, int) {
    DataParallelOptions options = all;
    options.devices.clear();
    for (int i = 0; i < devices; ++i) {
      options.devices.push_back({DeviceKind::kCuda, i % gpus, i / gpus});
    }
    return options;
  };
}

/// Batches of these sizes. `ahead`: a step is begun before the one before it is finished.
void train_process(DataParallel& run, const std::vector<std::int64_t>& batches, bool ahead,
                   WorldTraining& all, std::mutex& mutex) {
  std::vector<double> losses, norms;
  std::vector<LossScaleState> scales;
  std::vector<Bytes> said;
  const auto begin = [&](std::size_t i) {
    const auto step = static_cast<std::int64_t>(i);
    run.begin_step(toy_batch(batches[i], step), step, 0.05F);
  };
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (i == 0 || !ahead) begin(i);
    if (ahead && i + 1 < batches.size()) begin(i + 1);
    run.all_gather(Bytes(1), said);  // as a trainer asks whether to stop
    const StepResult result = run.finish_step();
    losses.push_back(result.loss);
    norms.push_back(result.skipped ? 0 : result.grad_norm);
    if (result.loss_scale) scales.push_back(*result.loss_scale);
  }
  const OptimizerState optimizer = run.optimizer_state();
  const std::lock_guard lock(mutex);
  if (!all.losses.empty()) {  // another process has been here
    CHECK(all.losses == losses);
    CHECK(all.norms == norms);
    CHECK(all.scales == scales);
    CHECK(all.optimizer == optimizer);
  }
  all.losses = losses;
  all.norms = norms;
  all.scales = scales;
  all.optimizer = optimizer;
  all.parameters.resize(static_cast<std::size_t>(run.size()));
  all.statistics.resize(all.parameters.size());
  const int first = run.rank_layout().first_rank();
  for (int rank = first; rank < first + run.rank_layout().own_ranks(); ++rank) {
    all.parameters[static_cast<std::size_t>(rank)] = parameters(run, rank);
    all.statistics[static_cast<std::size_t>(rank)] = statistics(run, rank);
  }
}

const std::vector<std::int64_t> kBatches{8, 5, 7, 3};

/// On so many devices in each process.
WorldTraining trained_on(const std::vector<int>& devices, const ProcessOptions& make,
                         bool ahead = false) {
  WorldTraining result;
  std::mutex mutex;
  if (devices.size() == 1) {
    DataParallel run(make(devices.front(), 0));
    train_process(run, kBatches, ahead, result, mutex);
    return result;
  }
  with_processes(devices, make,
                 [&](DataParallel& run) { train_process(run, kBatches, ahead, result, mutex); });
  return result;
}

DataParallelOptions toy_of(BatchNormMode mode, const Optimizer& optimizer = Sgd{}) {
  DataParallelOptions options = toy_options(1, mode, 8);
  options.optimizer = optimizer;
  return options;
}

TEST_CASE("GPU world: two processes of two replicas end at the bytes of one of four") {
  for (const bool peer_access : {true, false}) {
    CAPTURE(peer_access);
    fake_runtime::use({.devices = 2, .peer_access = peer_access});
    for (const BatchNormMode mode : {BatchNormMode::kSync, BatchNormMode::kLocal}) {
      CAPTURE(static_cast<int>(mode));
      DataParallelOptions options = toy_of(mode, AdamW{});
      options.gradient_exchange.kind = GradientExchangeKind::kOwner;
      const WorldTraining one = trained_on({4}, on_gpus(options, 2));
      CHECK((trained_on({2, 2}, on_gpus(options, 2)) == one));
      if (!peer_access) CHECK((trained_on({1, 3}, on_gpus(options, 1)) == one));
    }
  }
}

TEST_CASE("GPU world: virtual BatchNorm, micro-batches, groups and steps ahead are one process's") {
  fake_runtime::use({.devices = 1});
  DataParallelOptions slices = toy_of(BatchNormMode::kGhost);
  slices.norm.options.virtual_devices = 2;
  DataParallelOptions micro = toy_of(BatchNormMode::kSync);
  micro.accumulate = 2;
  DataParallelOptions groups = toy_of(BatchNormMode::kSync);
  groups.norm.options.process_groups = {{0, 2}, {1, 3}};
  for (const DataParallelOptions& options : {slices, micro, groups}) {
    const WorldTraining one = trained_on({4}, on_gpus(options, 1));
    CHECK((trained_on({2, 1, 1}, on_gpus(options, 1), true) == one));
  }
}

TEST_CASE("GPU world: placement does not matter where sums are kept image by image") {
  fake_runtime::use({.devices = 2});
  DataParallelOptions options = placed_options(1, Sgd{.weight_decay = 1e-3F});
  options.placement_invariant = true;
  const WorldTraining whole = trained_on({1}, on_gpus(options, 1));
  for (const std::vector<int>& devices : {std::vector{2, 2}, {1, 2}}) {
    CAPTURE(to_string(RankPartition{devices}));
    const WorldTraining spread = trained_on(devices, on_gpus(options, 2));
    CHECK(spread.parameters.back() == whole.parameters.front());
    CHECK(spread.statistics.back() == whole.statistics.front());
    CHECK(spread.losses == whole.losses);
    CHECK(spread.norms == whole.norms);
    CHECK(spread.optimizer == whole.optimizer);
  }
}

TEST_CASE("GPU world: fp16 skips the steps that one process skips") {
  fake_runtime::use({.devices = 1});
  DataParallelOptions options = toy_of(BatchNormMode::kSync);
  options.precision = DType::kFloat16;
  options.loss_scale = LossScaleOptions{.initial = 0x1p18F, .growth_interval = 2};
  const WorldTraining one = trained_on({3}, on_gpus(options, 1));
  CHECK(one.scales.back().skipped > 0);
  CHECK(one.scales.back().skipped < static_cast<std::int64_t>(kBatches.size()));
  CHECK((trained_on({2, 1}, on_gpus(options, 1)) == one));
  CHECK((trained_on({1, 2}, on_gpus(options, 1), true) == one));
}

// The host is far ahead of a GPU that is slow.
TEST_CASE("GPU world: the host waits for what a GPU has yet to write") {
  fake_runtime::use({.devices = 2, .upload_milliseconds = 1});
  const ProcessOptions make = on_gpus(toy_of(BatchNormMode::kLocal), 2);
  const WorldTraining one = trained_on({4}, make);
  WorldTraining slow;
  std::mutex mutex;
  with_processes({2, 2}, make, [&](DataParallel& run) {
    const int last = run.rank_layout().first_rank() + 1;
    auto& backend = dynamic_cast<gpu::GpuOperations&>(run.replica(last).backend());
    fake_runtime::enqueue(backend.stream(),
                          [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
    train_process(run, kBatches, true, slow, mutex);
  });
  CHECK((slow == one));
}

/// A loss of the last rank's is not finite.
void check_bad_loss(const std::vector<int>& devices, const ProcessOptions& make) {
  with_processes(devices, make, [](DataParallel& run) {
    run.train_step(toy_batch(8, 0), 0, 0.05F);
    const int first = run.rank_layout().first_rank();
    const std::vector<float> before = parameters(run, first);
    Batch batch = toy_batch(8, 1);
    batch.images[batch.images.size() - 5] = std::numeric_limits<float>::infinity();
    // The last image's labels all say "ignored".
    constexpr std::int64_t kPixels = kSize.height * kSize.width;
    std::fill(batch.labels.end() - kPixels, batch.labels.end(), Label{1});
    batch.class_pixels[1] += kPixels;
    CHECK_THROWS_WITH_AS(
        run.train_step(batch, 1, 0.05F),
        doctest::Contains(
            ("the loss of " + run.rank_layout().describe_rank(run.size() - 1)).c_str()),
        NonFiniteError);
    CHECK(parameters(run, first) == before);
    CHECK(std::isfinite(run.train_step(toy_batch(8, 2), 2, 0.05F).loss));
  });
}

TEST_CASE("GPU world: a loss that is not finite in one process leaves all weights alone") {
  fake_runtime::use({.devices = 1});
  check_bad_loss({2, 2}, on_gpus(toy_of(BatchNormMode::kLocal), 1));
}

#if defined(LOCKSTEP_NCCL)

/// As `all`, each rank on a GPU of its own: the fake NCCL knows a GPU by its number.
ProcessOptions on_own_gpus(const DataParallelOptions& all) {
  return [all](int devices, int first) {
    DataParallelOptions options = all;
    options.devices.clear();
    for (int i = 0; i < devices; ++i) options.devices.push_back({DeviceKind::kCuda, first + i, 0});
    return options;
  };
}

TEST_CASE("GPU world: NCCL between the GPUs of all processes brings the same statistics") {
  fake_runtime::use({.devices = 4});
  DataParallelOptions groups = toy_of(BatchNormMode::kSync);
  groups.norm.options.process_groups = {{0, 2}, {1, 3}};
  for (DataParallelOptions options : {toy_of(BatchNormMode::kSync), groups}) {
    options.gradient_exchange.kind = GradientExchangeKind::kOwner;
    const WorldTraining one = trained_on({4}, on_own_gpus(options));
    options.communicator.transport = TransportKind::kNccl;
    CHECK((trained_on({1, 3}, on_own_gpus(options), true) == one));
  }
  CHECK(fake_nccl::take_overlaps() == 0);
  CHECK(fake_nccl::communicators() == 0);
}

TEST_CASE("GPU world: NCCL sums the gradients of all processes") {
  fake_runtime::use({.devices = 4, .peer_access = false});
  for (const TransportKind transport : {TransportKind::kHost, TransportKind::kNccl}) {
    CAPTURE(to_string(transport));
    DataParallelOptions options = all_reduced(toy_of(BatchNormMode::kSync, AdamW{}));
    options.communicator.transport = transport;
    const WorldTraining one = trained_on({4}, on_own_gpus(options));
    CHECK((trained_on({2, 2}, on_own_gpus(options)) == one));
  }
  const DataParallelOptions local = all_reduced(toy_of(BatchNormMode::kLocal, AdamW{}));
  CHECK((trained_on({3, 1}, on_own_gpus(local), true) == trained_on({4}, on_own_gpus(local))));
  DataParallelOptions fp16 = all_reduced(toy_of(BatchNormMode::kSync));
  fp16.precision = DType::kFloat16;
  fp16.loss_scale = LossScaleOptions{.initial = 0x1p18F, .growth_interval = 2};
  const WorldTraining one = trained_on({3}, on_own_gpus(fp16));
  CHECK(one.scales.back().skipped > 0);
  CHECK((trained_on({1, 2}, on_own_gpus(fp16)) == one));
  CHECK(fake_nccl::take_overlaps() == 0);
  CHECK(fake_nccl::communicators() == 0);
}

TEST_CASE("GPU world: with NCCL, too, a bad loss in one process leaves all weights alone") {
  fake_runtime::use({.devices = 2});
  const DataParallelOptions options = all_reduced(toy_of(BatchNormMode::kLocal));
  check_bad_loss({1, 1}, on_own_gpus(options));
}

#endif

/// What a process of such options says; both say the same.
std::string refusal(const ProcessOptions& make) {
  std::string text;
  std::mutex mutex;
  with_timeout(kLong, [&] {
    run_world(2, [&](World& world) {
      DataParallelOptions options = make(1, world.process());
      options.communicator.world = world;
      try {
        const DataParallel run(std::move(options));
      } catch (const ConfigError& error) {
        const std::lock_guard lock(mutex);
        text = error.what();
      }
    });
  });
  return text;
}

TEST_CASE("GPU world: what several processes cannot do is refused with a way out") {
  fake_runtime::use({.devices = 1});
  const auto refuses = [](const ProcessOptions& make, const char* reason) {
    const std::string text = refusal(make);
    CAPTURE(text);
    CHECK(text.find(reason) != std::string::npos);
  };
  DataParallelOptions options = toy_of(BatchNormMode::kSync);
  options.communicator.transport = TransportKind::kEvent;
  refuses(on_gpus(options, 1), "use \"host\", \"nccl\" or \"auto\" with several processes");
  options.communicator.transport = TransportKind::kAuto;
  options.cuda_graph = true;
  refuses(on_gpus(options, 1), "cuda_graph = true replays steps without the host");
  options.cuda_graph = false;
  const ProcessOptions gpu = on_gpus(options, 1);
  refuses(
      [&](int devices, int first) { return first == 0 ? options : gpu(devices, first); },
      "got replica 0 (cpu:0 of process 0 on host0) and replica 1 (cuda:0 of process 1 on host1)");
}

}  // namespace
}  // namespace lockstep::test
