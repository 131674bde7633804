// A loss by a formula of one's own on the fake runtime: the host computes it in the middle of a
// step, behind what the streams still have to do.

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "core/rng.h"
#include "cuda/fake_runtime.h"
#include "kernels/operations/gpu_operations.h"
#include "lockstep/core/check.h"
#include "step/toy_training.h"

namespace lockstep::test {
namespace {

/// The absolute error, which the library has a kernel for, by another name.
struct OwnError {
  LossElement operator()(float output, float target) const {
    const float d = output - target;
    return {static_cast<double>(std::abs(d)), d > 0 ? 1.0F : d < 0 ? -1.0F : 0.0F};
  }
};

DataParallelOptions options_of(const Loss& loss, int ranks, int gpus) {
  DataParallelOptions options = toy_options(ranks, BatchNormMode::kSync);
  for (int rank = 0; rank < ranks; ++rank) {
    options.devices[static_cast<std::size_t>(rank)] = {DeviceKind::kCuda, rank % gpus, rank / gpus};
  }
  options.losses = {{"out", loss}};
  options.placement_invariant = true;
  return options;
}

Batch batch_of(std::int64_t count, std::int64_t step) {
  Batch batch = toy_batch(count, step);
  Rng rng(3, RngPurpose::kTest, static_cast<std::uint64_t>(step));
  std::vector<float>& targets = batch.targets["out"];
  targets.resize(static_cast<std::size_t>(count * kSize.height * kSize.width * kClasses));
  for (float& target : targets) target = rng.uniform();
  return batch;
}

/// `late`: what one device has to do comes after the host's part, unless that waits for it.
Outcome trained(const DataParallelOptions& options, bool late = false) {
  const auto run = make_toy(options);
  std::vector<double> losses;
  for (std::int64_t step = 0; step < 3; ++step) {
    if (late) {
      auto& slow = dynamic_cast<gpu::GpuOperations&>(run->replica(0).backend());
      fake_runtime::enqueue(slow.stream(),
                            [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
    }
    losses.push_back(run->train_step(batch_of(5, step), step, 0.05F).loss);
  }
  return outcome_of(*run, losses);
}

TEST_CASE("a formula of one's own trains on GPUs to the bits of a kernel of the same formula") {
  fake_runtime::use({.devices = 2});
  const Outcome kernel = trained(options_of(L1Loss{}, 1, 1));
  const Outcome own = trained(options_of(ElementwiseLoss<OwnError>{}, 1, 1));
  CHECK(own.parameters == kernel.parameters);
  CHECK(own.statistics == kernel.statistics);
  for (std::size_t i = 0; i < own.losses.size(); ++i) {
    CHECK(own.losses[i] == doctest::Approx(kernel.losses[i]).epsilon(1e-9));
  }
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    CHECK(trained(options_of(ElementwiseLoss<OwnError>{}, ranks, 2), true) == own);
  }
}

TEST_CASE("a step that the host computes a loss of is not recorded") {
  fake_runtime::use({.devices = 1});
  DataParallelOptions options = options_of(ElementwiseLoss<OwnError>{}, 2, 1);
  options.cuda_graph = true;
  CHECK_THROWS_WITH_AS(make_toy(options),
                       doctest::Contains("without the host, which computes the loss at output "
                                         "'out'; set it to false"),
                       ConfigError);
  options.losses = {{"out", L1Loss{}}};
  CHECK(std::isfinite(trained(options).losses.back()));
}

}  // namespace
}  // namespace lockstep::test
