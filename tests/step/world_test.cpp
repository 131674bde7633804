// Several processes (threads here) train as one would: the same bytes, wherever the ranks lie.

#include <doctest/doctest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>

#include "lockstep/core/check.h"
#include "step/placed_training.h"
#include "step/scatter.h"
#include "step/world_training.h"
#include "support/count_allocations.h"
#include "support/errors.h"

namespace lockstep::test {
namespace {

Placed placed(const std::vector<int>& devices, const Optimizer& optimizer) {
  return one_of_all<Placed>(
      devices, [&](int count, int) { return placed_options(count, optimizer); },
      [](DataParallel& run) { return train_steps(run); });
}

}  // namespace

TEST_CASE("world: sync comes to the bytes of one process, wherever the devices are") {
  for (const Optimizer& optimizer : {Optimizer(Sgd{.weight_decay = 1e-3F}), Optimizer(AdamW{})}) {
    const Placed whole = trained_in_steps(placed_options(1, optimizer));
    for (const std::vector<int>& devices :
         {std::vector{1, 1}, {4, 4}, {2, 2, 2, 2}, {3, 1}, {1, 2, 3}, {1, 1, 1, 1, 1}, {8, 3}}) {
      CAPTURE(to_string(RankPartition{devices}));
      CHECK((placed(devices, optimizer) == whole));
    }
  }
}

TEST_CASE("world: activations in bf16 come to the bytes of one process") {
  const auto narrow = [&](int count, int) {
    DataParallelOptions options = placed_options(count, Sgd{});
    options.precision = DType::kBFloat16;
    return options;
  };
  const Placed whole = trained_in_steps(narrow(1, 0));
  for (const std::vector<int>& devices : {std::vector{1, 1}, {1, 2, 3}}) {
    CAPTURE(to_string(RankPartition{devices}));
    CHECK((one_of_all<Placed>(devices, narrow,
                              [](DataParallel& run) { return train_steps(run); }) == whole));
  }
}

TEST_CASE("world: the gradient is clipped by the norm over all processes") {
  const Optimizer sgd = Sgd{.nesterov = true};
  const auto clipped = [&](int count, int) { return clipped_options(count, sgd); };
  const Placed whole = trained_in_steps(clipped_options(1, sgd));
  for (const std::vector<int>& devices : {std::vector{1, 1}, {3, 1}, {1, 2, 3}}) {
    CAPTURE(to_string(RankPartition{devices}));
    CHECK((one_of_all<Placed>(devices, clipped,
                              [](DataParallel& run) { return train_steps(run); }) == whole));
  }
}

TEST_CASE("world: every rank's parameters and running statistics are the same") {
  with_processes(
      {2, 1}, [](int devices, int) { return placed_options(devices, Sgd{}); },
      [](DataParallel& run) {
        train_steps(run, 0, 2);
        const int first = run.rank_layout().first_rank();
        for (int rank = first; rank < first + run.rank_layout().own_ranks(); ++rank) {
          CHECK(parameters(run, rank) == parameters(run, first));
          CHECK(statistics(run, rank) == statistics(run, first));
        }
      });
}

TEST_CASE("world: local and virtual BatchNorm, micro-batches and groups are those of one process") {
  const auto make = [](BatchNormMode mode, int accumulate, RankPartition groups) {
    return [=](int devices, int) {
      DataParallelOptions options = toy_options(devices, mode, 8);
      options.accumulate = accumulate;
      options.norm.options.process_groups = groups;
      return options;
    };
  };
  const auto trained = [](DataParallel& run) {
    std::vector<double> losses = train(run, {8, 5, 7});
    const int first = run.rank_layout().first_rank();
    return Outcome{parameters(run, first), {}, run.optimizer_state(), std::move(losses)};
  };
  for (const auto& options :
       {make(BatchNormMode::kLocal, 1, {}), make(BatchNormMode::kGhost, 1, {}),
        make(BatchNormMode::kSync, 2, {}), make(BatchNormMode::kSync, 1, {{0, 1}, {2, 3}}),
        make(BatchNormMode::kSync, 1, {{0, 2}, {1, 3}}),
        make(BatchNormMode::kSync, 1, {{0, 3}, {1, 2}})}) {
    DataParallel whole(options(4, 0));
    const Outcome expected = trained(whole);
    for (const std::vector<int>& devices : {std::vector{2, 2}, {1, 3}, {1, 1, 1, 1}}) {
      CAPTURE(to_string(RankPartition{devices}));
      CHECK((one_of_all<Outcome>(devices, options, trained) == expected));
    }
  }
}

TEST_CASE("world: micro-batches together come to the bytes of whole batches in one process") {
  const auto make = [](int accumulate) {
    return [=](int devices, int) {
      DataParallelOptions options = toy_options(devices, BatchNormMode::kSync, 8);
      options.accumulate = accumulate;
      options.accumulated_statistics = MicroBatches::kTogether;
      return options;
    };
  };
  const auto trained = [](DataParallel& run) {
    std::vector<double> losses = train(run, {8, 5, 7});
    const int first = run.rank_layout().first_rank();
    return Outcome{parameters(run, first), statistics(run, first), run.optimizer_state(),
                   std::move(losses)};
  };
  DataParallel whole(make(1)(1, 0));
  const Outcome expected = trained(whole);
  for (const int accumulate : {1, 2, 8}) {
    for (const std::vector<int>& devices : {std::vector{1, 1}, {2, 1}}) {
      CAPTURE(accumulate);
      CHECK((one_of_all<Outcome>(devices, make(accumulate), trained) == expected));
    }
  }
}

/// What the process of `run` has of a batch: elsewhere there is nothing to learn from.
Batch own_part(const DataParallel& run, Batch batch) {
  const auto count = static_cast<std::size_t>(batch.count());
  const std::vector<std::int64_t> own =
      own_places(batch.count(), run.options().micro_batches(), run.rank_layout());
  const std::size_t labels = batch.labels.size() / count, values = batch.images.size() / count;
  batch.own_places_only = true;
  std::fill(batch.class_pixels.begin(), batch.class_pixels.end(), 0);
  for (std::size_t n = 0; n < count; ++n) {
    const bool mine = std::binary_search(own.begin(), own.end(), static_cast<std::int64_t>(n));
    for (std::size_t i = n * labels; i < (n + 1) * labels; ++i) {
      if (!mine) batch.labels[i] = 254;
      if (mine && batch.labels[i] != 255) ++batch.class_pixels[batch.labels[i]];
    }
    if (mine) continue;
    std::fill_n(batch.images.begin() + static_cast<std::ptrdiff_t>(n * values), values,
                std::numeric_limits<float>::quiet_NaN());
  }
  return batch;
}

TEST_CASE("world: a process needs its own places of a batch only") {
  const auto options = [](int devices, int) {
    DataParallelOptions toy = toy_options(devices, BatchNormMode::kSync, 8);
    toy.accumulate = 2;
    return toy;
  };
  const auto trained = [](DataParallel& run) {
    for (const std::int64_t count : {8, 5, 1}) {
      const Batch batch = toy_batch(count, count);
      const bool part = run.rank_layout().processes() > 1;
      run.train_step(part ? own_part(run, batch) : batch, count, 0.05F);
    }
    return parameters(run, run.rank_layout().first_rank());
  };
  DataParallel whole(options(4, 0));
  const std::vector<float> expected = trained(whole);
  for (const std::vector<int>& devices : {std::vector{2, 2}, {1, 3}, {1, 1, 1, 1}}) {
    CAPTURE(to_string(RankPartition{devices}));
    CHECK((one_of_all<std::vector<float>>(devices, options, trained) == expected));
  }
}

// Layers of our own: oneDNN makes a list of arguments at each call.
TEST_CASE("world: a step allocates nothing, and what is said before the next one neither") {
  const auto make = [](int devices, int) {
    DataParallelOptions options = toy_options(devices, BatchNormMode::kSync, 8);
    options.model = [](NetworkBuilder& net, Value* x, const NormLayer& norm) -> Outputs {
      return {{"out", norm(net, norm(net, x, "a", {.relu = true}), "b")}};
    };
    options.communicator.stall_timeout = std::chrono::milliseconds(0);  // its reports do
    return options;
  };
  std::barrier counted(2);
  with_processes({2, 1}, make, [&](DataParallel& run) {
    const std::vector<Batch> batches = {toy_batch(8, 0), toy_batch(5, 1)};
    const Bytes own(3);
    std::vector<Bytes> all;
    const auto steps = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t step = begin; step < end; ++step) {
        run.train_step(batches[static_cast<std::size_t>(step) % batches.size()], step, 0.05F);
        run.all_gather(own, all);
      }
    };
    steps(0, 4);
    const long before = allocation_count();
    steps(4, 40);
    const long after = allocation_count();
    counted.arrive_and_wait();  // what follows does
    CHECK(after - before == 0);
  });
}

TEST_CASE("world: an evaluation counts every image once") {
  using Evaluated = std::tuple<std::vector<std::int64_t>, double, std::int64_t>;
  const auto evaluated = [](DataParallel& run) -> Evaluated {
    train_steps(run, 0, 1);
    const auto result =
        run.evaluate(7, [](std::int64_t index) { return toy_batch(1, 100 + index); });
    return {result.confusion, result.loss, result.top5};
  };
  const auto make = [](int devices, int) { return placed_options(devices, Sgd{}); };
  DataParallel whole(make(1, 0));
  const Evaluated expected = evaluated(whole);
  CHECK(std::accumulate(std::get<0>(expected).begin(), std::get<0>(expected).end(),
                        std::int64_t{0}) > 0);
  for (const std::vector<int>& devices : {std::vector{1, 1}, {2, 1, 1}}) {
    CHECK((one_of_all<Evaluated>(devices, make, evaluated) == expected));
  }
}

TEST_CASE("world: weights and the optimizer's state of process 0 go to all") {
  const auto make = [](int devices, int) { return placed_options(devices, Sgd{}); };
  const Placed whole = trained_in_steps(make(1, 0));
  DataParallel before(make(4, 0));
  train_steps(before, 0, 2);
  const TensorMap weights = before.state_dict();
  const OptimizerState state = before.optimizer_state();
  const Placed rest = one_of_all<Placed>({2, 1}, make, [&](DataParallel& run) {
    const bool first = run.rank_layout().process == 0;
    run.load_state_dict(first ? weights : TensorMap());
    run.set_optimizer_state(state);
    return train_steps(run, 2, 5);
  });
  CHECK(rest.outcome.parameters == whole.outcome.parameters);
  CHECK(rest.outcome.statistics == whole.outcome.statistics);
}

TEST_CASE("world: a loss that is not finite in one process leaves all weights alone") {
  with_processes(
      {1, 1}, [](int devices, int) { return toy_options(devices, BatchNormMode::kLocal, 8); },
      [](DataParallel& run) {
        train(run, {8});
        const int first = run.rank_layout().first_rank();
        const std::vector<float> before = parameters(run, first);
        Batch batch = toy_batch(8, 1);
        batch.images[batch.images.size() - 5] = std::numeric_limits<float>::infinity();
        CHECK_THROWS_WITH_AS(run.train_step(batch, 1, 0.05F), doctest::Contains("of process"),
                             NonFiniteError);
        CHECK(parameters(run, first) == before);
        CHECK(std::isfinite(run.train_step(toy_batch(8, 2), 2, 0.05F).loss));
      });
}

// Images without a label have no gradient: those of process 0 do not overflow.
TEST_CASE("world: a gradient that overflows in one process is skipped by all") {
  const auto make = [](int devices, int) {
    DataParallelOptions options = toy_options(devices, BatchNormMode::kLocal, 8);
    options.loss_scale = LossScaleOptions{.initial = 0x1p127F};
    return options;
  };
  Batch batch = toy_batch(8, 0);
  std::fill_n(batch.labels.begin(), batch.labels.size() / 2, Label{255});
  std::fill_n(batch.labels.begin() + static_cast<std::ptrdiff_t>(batch.labels.size() / 2), 9,
              Label{1});
  batch.class_pixels.assign(kClasses, 0);
  for (const Label label : batch.labels) {
    if (label != 255) ++batch.class_pixels[label];
  }
  with_processes({1, 1}, make, [&](DataParallel& run) {
    set_parameter(run, "encoder.0.0.bn.weight", 1e4F);
    const int first = run.rank_layout().first_rank();
    const std::vector<float> before = parameters(run, first);
    const StepResult skipped = run.train_step(batch, 0, 0.05F);
    CHECK(skipped.skipped);
    const std::vector<float> own = gradients(run, first);
    const bool fits = std::all_of(own.begin(), own.end(), [](float g) { return std::isfinite(g); });
    CHECK(fits == (first == 0));
    CHECK(parameters(run, first) == before);
    CHECK(run.loss_scale() == LossScaleState{0x1p126F, 0x1p-126F, 0, 1});
  });
}

TEST_CASE("world: a process that is at another call is named with both calls") {
  const auto failure_of = [](int strays) {
    std::string text;
    std::mutex mutex;
    with_timeout(kLong, [&] {
      run_world(2, [&](World& world) {
        DataParallelOptions options = placed_options(1, Sgd{});
        options.communicator.world = world;
        if (world.process() == strays) {
          options.communicator.hook = [](int, const SyncCall& call) {
            return call.index != 1 || call.direction != Direction::kForward;
          };
        }
        DataParallel run(std::move(options));
        try {
          train_steps(run, 0, 1);
        } catch (const ReplicaError& error) {
          const std::lock_guard lock(mutex);
          text = error.what();
        }
      });
    });
    return text;
  };
  const std::string text = failure_of(1);
  CAPTURE(text);
  CHECK(text.find("process 1 (host1, replica 1) is at the forward call 2") != std::string::npos);
  CHECK(text.find("forward call 1 of 'a_bn'") != std::string::npos);
}

TEST_CASE("world: a process that does not answer is named by the watchdog") {
  std::string text;
  with_timeout(kLong, [&] {
    run_world(2, [&](World& world) {
      DataParallelOptions options = placed_options(1, Sgd{});
      options.communicator.world = world;
      options.communicator.stall_timeout = std::chrono::milliseconds(300);
      DataParallel run(std::move(options));
      if (world.process() == 1) return;  // ends without a word
      try {
        train_steps(run, 0, 1);
      } catch (const StalledError& error) {
        text = error.what();
      }
    });
  });
  CAPTURE(text);
  CHECK(text.find("no answer from process 1 (host1, replica 1)") != std::string::npos);
}

// What is said there waits for no replica.
TEST_CASE("world: a process that does not answer between two steps is named by the watchdog") {
  std::string text;
  with_timeout(kLong, [&] {
    run_world(2, [&](World& world) {
      DataParallelOptions options = placed_options(1, Sgd{});
      options.communicator.world = world;
      options.communicator.stall_timeout = std::chrono::milliseconds(300);
      DataParallel run(std::move(options));
      if (world.process() == 1) return;  // ends without a word
      std::vector<Bytes> all;
      try {
        run.all_gather(Bytes(3), all);
      } catch (const StalledError& error) {
        text = error.what();
      }
    });
  });
  CAPTURE(text);
  CHECK(text.find("between two steps; no answer from process 1 (host1, replica 1)") !=
        std::string::npos);
}

namespace {

/// A world whose processes are heard of all the time.
class HeardWorld final : public ThreadWorld {
 public:
  explicit HeardWorld(const ThreadWorld& world) : ThreadWorld(world) {}
  std::chrono::steady_clock::duration silence_of(int) const override { return {}; }
};

}  // namespace

TEST_CASE("world: a process with work of its own between two steps is waited for") {
  with_timeout(kLong, [&] {
    run_world(2, [&](const ThreadWorld& world) {
      HeardWorld heard(world);
      DataParallelOptions options = placed_options(1, Sgd{});
      options.communicator.world = heard;
      options.communicator.stall_timeout = std::chrono::milliseconds(50);
      DataParallel run(std::move(options));
      if (world.process() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
      std::vector<Bytes> all;
      run.all_gather(Bytes(3), all);
      CHECK(all.size() == 2);
    });
  });
}

}  // namespace lockstep::test
