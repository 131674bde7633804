// Steps that are begun before the one before them is finished, on the fake runtime: what is issued
// when, and that nobody can tell from the results.

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <tuple>

#include "cuda/fake_runtime.h"
#include "cuda/tiny_run.h"
#include "kernels/operations/gpu_operations.h"
#include "lockstep/core/check.h"
#include "run/checkpoint.h"
#include "step/toy_training.h"
#include "support/with_timeout.h"

namespace lockstep::test {
namespace {

using fake_runtime::ReadbackWait;

constexpr std::int64_t kIssuedSteps = 5;

DataParallelOptions on_one_gpu(int ranks, BatchNormMode mode) {
  DataParallelOptions options = toy_options(ranks, mode);
  for (int rank = 0; rank < ranks; ++rank) options.devices[rank] = {DeviceKind::kCuda, 0, rank};
  return options;
}

/// The fourth batch is smaller than the others.
Batch batch_of(std::int64_t step) { return toy_batch(step == 3 ? 4 : 5, step); }

/// `ahead` steps are begun before the first is finished.
Outcome trained_ahead(const DataParallelOptions& options, std::int64_t ahead) {
  const auto run = make_toy(options);
  std::vector<double> losses;
  std::int64_t begun = 0;
  for (std::int64_t step = 0; step < kIssuedSteps; ++step) {
    for (; begun <= step + ahead && begun < kIssuedSteps; ++begun) {
      run->begin_step(batch_of(begun), begun, 0.05F);
      if (begun + 1 < kIssuedSteps) run->stage_next(batch_of(begun + 1));
    }
    const StepResult result = run->finish_step();
    losses.push_back(result.loss);
    losses.push_back(result.grad_norm);
  }
  return outcome_of(*run, std::move(losses));
}

TEST_CASE("a step is issued as a whole while the device is in the middle of the one before it") {
  fake_runtime::use({.devices = 1});
  DataParallelOptions options = on_one_gpu(2, BatchNormMode::kSync);
  std::promise<void> go_on;
  std::vector<Backend*> backends(2);
  std::atomic<int> calls{0};
  // The devices stop at the first exchange of step 1.
  options.communicator.hook = [&, end = go_on.get_future().share()](int rank,
                                                                    const SyncCall& call) {
    if (call.direction != Direction::kForward || call.index != 0) return true;
    if (call.layer != std::string("encoder.0.0.bn") || calls++ / 2 != 1) return true;
    auto& backend = dynamic_cast<gpu::GpuOperations&>(*backends[static_cast<std::size_t>(rank)]);
    fake_runtime::enqueue(backend.stream(), [end] { end.wait(); });
    return true;
  };
  const auto run = make_toy(options);
  for (int rank = 0; rank < 2; ++rank) {
    backends[static_cast<std::size_t>(rank)] = &run->replica(rank).backend();
  }
  REQUIRE(run->steps_ahead() == 1);
  run->train_step(toy_batch(5, 0), 0, 0.05F);
  with_timeout(std::chrono::seconds(30), [&] {
    run->begin_step(toy_batch(5, 1), 1, 0.05F);
    run->begin_step(toy_batch(5, 2), 2, 0.05F);
    CHECK(calls == 6);
    go_on.set_value();
    const double loss = run->finish_step().loss;
    CHECK(loss != run->finish_step().loss);
  });
}

TEST_CASE("steps that are begun ahead have the bits of steps one by one") {
  for (const auto& [ranks, mode, graph] :
       {std::tuple{1, BatchNormMode::kLocal, false}, std::tuple{4, BatchNormMode::kSync, false},
        std::tuple{2, BatchNormMode::kSync, true}}) {
    CAPTURE(ranks);
    CAPTURE(graph);
    fake_runtime::use({.devices = 1, .upload_milliseconds = 1});
    DataParallelOptions options = on_one_gpu(ranks, mode);
    options.cuda_graph = graph;
    CHECK(trained_ahead(options, 1) == trained_ahead(options, 0));
  }
}

TEST_CASE("no step after one with a bad loss changes the weights, also if it was begun before") {
  for (const bool graph : {false, true}) {
    CAPTURE(graph);
    fake_runtime::use({.devices = 1});
    DataParallelOptions options = on_one_gpu(3, BatchNormMode::kLocal);
    options.cuda_graph = graph;
    const auto run = make_toy(options);
    for (std::int64_t step = 0; step < 3; ++step) run->train_step(toy_batch(5, step), step, 0.05F);
    const std::vector<float> weights = parameters(*run, 0);
    const OptimizerState momentum = run->optimizer_state();
    Batch bad = toy_batch(5, 3);
    bad.images[2 * 3 * 16 * 16 + 5] = std::numeric_limits<float>::quiet_NaN();  // rank 1
    run->begin_step(bad, 3, 0.05F);
    run->begin_step(toy_batch(5, 4), 4, 0.05F);
    CHECK_THROWS_WITH_AS(static_cast<void>(run->finish_step()),
                         doctest::Contains("step 3: the loss of replica 1 (cuda:0"),
                         NonFiniteError);
    for (int rank = 0; rank < 3; ++rank) CHECK(parameters(*run, rank) == weights);
    CHECK(run->optimizer_state() == momentum);
    // The bad step is over: the next one trains.
    CHECK(run->train_step(toy_batch(5, 5), 5, 0.05F).loss > 0);
    CHECK(parameters(*run, 0) != weights);
  }
}

TEST_CASE("with a step under way nothing else is called") {
  fake_runtime::use({.devices = 1});
  const auto run = make_toy(on_one_gpu(1, BatchNormMode::kLocal));
  run->begin_step(toy_batch(5, 0), 0, 0.05F);
  CHECK_THROWS_WITH_AS(run->optimizer_state(), doctest::Contains("step 0 is under way"), Error);
  CHECK_THROWS_AS(run->forward(toy_batch(5, 1)), Error);
  CHECK_THROWS_AS(run->evaluate(1, [](std::int64_t) { return toy_batch(1, 0); }), Error);
  run->begin_step(toy_batch(5, 1), 1, 0.05F);
  CHECK_THROWS_AS(run->begin_step(toy_batch(5, 2), 2, 0.05F), Error);
  static_cast<void>(run->finish_step());
  static_cast<void>(run->finish_step());
  CHECK_THROWS_AS(static_cast<void>(run->finish_step()), Error);
}

// --- the trainer

/// Of the copies that two ranks make in steps, how many had been issued when the host waited for
/// those of each step.
std::vector<int> steps_issued(int steps) {
  std::vector<int> issued(static_cast<std::size_t>(steps));
  for (const ReadbackWait& wait : fake_runtime::readback_waits()) {
    const int step = (wait.copy - 1) / 2;
    if (step < steps) issued[static_cast<std::size_t>(step)] = wait.issued / 2;
  }
  return issued;
}

TEST_CASE("the trainer issues the next step before it waits for the present one") {
  for (const char* graph : {"run.cuda_graph=false", "run.cuda_graph=true"}) {
    CAPTURE(graph);
    fake_runtime::use({.devices = 1});
    const TemporaryFolder folder;
    train(request(folder, "a", {graph}));
    CHECK(steps_issued(6) == std::vector<int>{2, 3, 4, 5, 6, 6});
  }
}

TEST_CASE("no step is under way where the trainer logs, validates or saves") {
  for (const char* pause : {"run.log_every=3", "run.val_every=3", "run.checkpoint_every=3"}) {
    CAPTURE(pause);
    fake_runtime::use({.devices = 1});
    const TemporaryFolder folder;
    train(request(folder, "a", {pause}));
    CHECK(steps_issued(6) == std::vector<int>{2, 3, 3, 5, 6, 6});
  }
}

TEST_CASE("what a run leaves does not depend on which steps were begun ahead") {
  fake_runtime::use({.devices = 1});
  const TemporaryFolder folder;
  train(request(folder, "ahead"));
  train(request(folder, "paused", {"run.checkpoint_every=1"}));
  const RunFolder ahead{folder.path() / "ahead"}, paused{folder.path() / "paused"};
  CHECK(read_text(ahead.scalars()) == read_text(paused.scalars()));
  for (const char* name : {"last", "iter_6"}) {
    CHECK(read_text(ahead.checkpoint(name)) == read_text(paused.checkpoint(name)));
    CHECK(read_text(state_path(ahead.checkpoint(name))) ==
          read_text(state_path(paused.checkpoint(name))));
  }
}

TEST_CASE("steps before a failed one count, and the run goes on from its checkpoint") {
  fake_runtime::use({.devices = 1});
  const TemporaryFolder folder;
  train(request(folder, "whole", {"run.checkpoint_every=2"}));
  TrainRequest cut = request(folder, "cut", {"run.checkpoint_every=2"});
  cut.fault = "throw:rank=1,step=4";
  CHECK_THROWS_WITH_AS(train(cut), doctest::Contains("replica 1 (cuda:0"), ReplicaError);
  const RunFolder whole{folder.path() / "whole"}, resumed{folder.path() / "cut"};
  CHECK(lines_of(resumed.events()).back().at("step") == 4);
  CHECK(lines_of(resumed.events()).back().at("exit_code") == 5);
  cut.fault = "throw:rank=1,step=5";
  cut.resume = "auto";
  CHECK_THROWS_AS(train(cut), ReplicaError);
  CHECK(lines_of(resumed.events()).back().at("step") == 5);  // 4 was under way when 5 failed
  cut.fault.clear();
  train(cut);
  CHECK(read_text(whole.scalars()) == read_text(resumed.scalars()));
  CHECK(read_text(whole.checkpoint("last")) == read_text(resumed.checkpoint("last")));
}

TEST_CASE("a loss that is not finite is named with its step, and the checkpoint is of one before") {
  fake_runtime::use({.devices = 1});
  const TemporaryFolder folder;
  const TrainRequest bad =
      request(folder, "a", {"optim.lr=1e38", "run.checkpoint_every=1", "schedule.type=constant"});
  const TrainRequest late = request(folder, "b", {"optim.lr=1e38", "schedule.type=constant"});
  std::vector<std::string> texts;
  for (const TrainRequest& each : {bad, late}) {
    try {
      train(each);
    } catch (const NonFiniteError& error) {
      texts.emplace_back(error.what());
    }
    const nlohmann::json end = lines_of(RunFolder{each.output}.events()).back();
    CHECK(end.at("exit_code") == 4);
    CHECK(texts.back().find(concat("step ", end.at("step").get<int>(), ": ")) == 0);
  }
  REQUIRE(texts.size() == 2);
  CHECK(texts[0] == texts[1]);
}

TEST_CASE("a stop is heard, and what is under way is finished and saved") {
  fake_runtime::use({.devices = 1});
  const TemporaryFolder folder;
  train(request(folder, "whole"));
  TrainRequest stopped =
      request(folder, "stopped", {"run.max_iters=100000", "schedule.type=constant"});
  std::atomic<bool> stop{false};
  stopped.stop = &stop;
  fake_runtime::use({.devices = 1});
  std::thread someone([&] {
    while (fake_runtime::readback_waits().size() < 2) std::this_thread::yield();
    stop = true;
  });
  const TrainSummary summary = train(stopped);
  someone.join();
  CHECK(summary.status == TrainStatus::kInterrupted);
  const TrainingState state = load_checkpoint(RunFolder{stopped.output}.checkpoint("last")).state;
  CHECK(state.iteration == summary.iterations);
  CHECK(state.losses.size() == static_cast<std::size_t>(summary.iterations));
  CHECK(summary.iterations >= 1);
}

}  // namespace
}  // namespace lockstep::test
