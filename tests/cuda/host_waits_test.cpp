// How the host waits for devices: asleep, at the end of a step alone, and not for ever.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "cuda/fake_runtime.h"
#include "kernels/operations/gpu_operations.h"
#include "lockstep/core/check.h"
#include "step/toy_training.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;

DataParallelOptions on_gpus(int ranks, int gpus) {
  DataParallelOptions options = toy_options(ranks, BatchNormMode::kSync);
  for (int rank = 0; rank < ranks; ++rank) {
    options.devices[rank] = {DeviceKind::kCuda, rank % gpus, rank / gpus};
  }
  return options;
}

gpu::Stream stream_of(DataParallel& run, int rank) {
  return dynamic_cast<gpu::GpuOperations&>(run.replica(rank).backend()).stream();
}

Batch weighted_batch(std::int64_t step) {
  Batch batch = toy_batch(5, step);
  batch.sample_weights = {1, 0.5F, 2, 1, 1};
  return batch;
}

TEST_CASE("the host sleeps while it waits for a step, an evaluation and uploads") {
  fake_runtime::use({.devices = 1});
  const auto run = make_toy(on_gpus(2, 1));
  const auto load = [](std::int64_t index) { return toy_batch(1, index); };
  run->train_step(toy_batch(5, 0), 0, 0.05F);
  static_cast<void>(run->evaluate(2, load));  // makes what it needs
  static_cast<void>(fake_runtime::take_host_stalls());
  const auto hold_up = [&] {
    fake_runtime::enqueue(stream_of(*run, 0), [] { std::this_thread::sleep_for(20ms); });
  };
  hold_up();
  run->train_step(toy_batch(5, 1), 1, 0.05F);
  hold_up();
  static_cast<void>(run->evaluate(2, load));
  hold_up();
  for (int i = 0; i < 5; ++i) static_cast<void>(parameters(*run, 0));
  const fake_runtime::HostStalls stalls = fake_runtime::take_host_stalls();
  MESSAGE("the host has waited ", stalls.all, " times for a device");
  CHECK(stalls.all >= 3);
  CHECK(stalls.spinning == 0);
}

// The device stops in the middle of step 1, behind the copies of its batch.
TEST_CASE("nothing that begins a step waits for the device") {
  for (const bool staged : {false, true}) {
    CAPTURE(staged);
    fake_runtime::use({.devices = 1});
    DataParallelOptions options = on_gpus(2, 1);
    options.sample_weights = true;  // with images and labels more copies than an upload ring holds
    std::promise<void> go_on;
    const std::shared_future<void> held = go_on.get_future().share();
    std::vector<std::promise<void>> stopped(2);
    std::vector<gpu::Stream> streams(2);
    std::atomic<int> calls{0};
    options.communicator.hook = [&](int rank, const SyncCall& call) {
      if (call.layer != std::string("encoder.0.0.bn") || call.direction != Direction::kForward) {
        return true;
      }
      if (calls++ / 2 == 1) {
        fake_runtime::enqueue(streams[static_cast<std::size_t>(rank)], [&stopped, rank, held] {
          stopped[static_cast<std::size_t>(rank)].set_value();
          held.wait();
        });
      }
      return true;
    };
    const auto run = make_toy(options);
    for (int rank = 0; rank < 2; ++rank) streams[rank] = stream_of(*run, rank);
    run->train_step(weighted_batch(0), 0, 0.05F);
    run->begin_step(weighted_batch(1), 1, 0.05F);
    for (auto& each : stopped) each.get_future().wait();
    static_cast<void>(fake_runtime::take_host_stalls());
    if (staged) run->stage_next(weighted_batch(2));
    auto begun =
        std::async(std::launch::async, [&] { run->begin_step(weighted_batch(2), 2, 0.05F); });
    const bool ready = begun.wait_for(10s) == std::future_status::ready;
    const int stalls = fake_runtime::take_host_stalls().all;
    go_on.set_value();  // first: what fails here must not keep the step
    CHECK(ready);
    CHECK(stalls == 0);
    begun.get();
    CHECK(run->finish_step().loss != run->finish_step().loss);
  }
}

TEST_CASE("a device that never finishes a step is named, and the run ends") {
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    fake_runtime::use({.devices = 3});
    DataParallelOptions options = on_gpus(ranks, ranks);
    options.gradient_exchange.kind = GradientExchangeKind::kOwner;
    options.communicator.stall_timeout = 2s;
    const Batch batch = toy_batch(5, 0);  // stays as long as a thread that is left behind
    auto run = make_toy(options);
    std::promise<void> never;
    const std::shared_future<void> held = never.get_future().share();
    // From the start: how long anything else takes does not matter.
    fake_runtime::enqueue(stream_of(*run, ranks - 1), [held] { held.wait(); });
    auto finished = std::async(std::launch::async, [&]() -> std::string {
      try {
        static_cast<void>(run->train_step(batch, 7, 0.05F));
      } catch (const StalledError& error) {
        return error.what();
      }
      return "finished";
    });
    const bool ended = finished.wait_for(60s) == std::future_status::ready;
    if (!ended) never.set_value();  // first: what fails here must not keep the step
    CHECK(ended);
    const std::string text = finished.get();
    if (!ended) continue;
    CAPTURE(text);
    const std::string device = concat("cuda:", ranks - 1);
    CHECK(contains(text, "stalled: no progress within 2.0 s"));
    CHECK(contains(text, concat("replica ", ranks - 1, " has waited ")));
    CHECK(contains(text, concat(" s for ", device, ", which does not finish what it was given")));
    CHECK(contains(text, ", step 7, for "));
    CHECK(contains(text, "resume the run from its last checkpoint"));
    CHECK(contains(text, concat("replica ", ranks - 1, " (", device, ") does not return")));
    CHECK(run->has_stuck_thread());
    CHECK(threads_left_behind());  // the process ends without a word to the device
    CHECK_THROWS_AS(run->train_step(batch, 8, 0.05F), Error);
    never.set_value();
    with_timeout(60s, [&] {
      while (run->has_stuck_thread()) std::this_thread::yield();
    });
  }
}

TEST_CASE("a step that takes its time is no stall") {
  fake_runtime::use({.devices = 2});
  DataParallelOptions options = on_gpus(2, 2);
  options.communicator.stall_timeout = 60s;
  const auto run = make_toy(options);
  fake_runtime::enqueue(stream_of(*run, 1), [] { std::this_thread::sleep_for(300ms); });
  CHECK(run->train_step(toy_batch(5, 0), 0, 0.05F).loss > 0);
}

}  // namespace
}  // namespace lockstep::test
