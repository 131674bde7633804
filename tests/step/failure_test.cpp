// A replica that fails, sleeps or strays at any point of a training: everyone leaves, and the
// report names it.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <memory>
#include <thread>

#include "lockstep/core/check.h"
#include "step/toy_training.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep::test {
namespace {

using Hook = std::function<bool(int rank, const SyncCall& call)>;

/// What training under `hook` throws. The whole run, with its threads, is gone afterwards.
std::exception_ptr failure_under(DataParallelOptions options, const Hook& hook) {
  options.communicator.hook = hook;
  std::exception_ptr thrown;
  with_timeout(std::chrono::seconds(30), [&] {
    const auto run = make_toy(options);
    try {
      train(*run);
    } catch (...) {
      thrown = std::current_exception();
    }
    CHECK_FALSE(run->has_stuck_thread());
    CHECK_THROWS(train(*run));
  });
  return thrown;
}

/// True the n-th time that `rank` comes to an exchange or barrier.
Hook at_call(int rank, int n, std::function<bool()> then) {
  auto calls = std::make_shared<std::atomic<int>>(0);
  return [=](int at, const SyncCall&) { return at != rank || (*calls)++ != n ? true : then(); };
}

constexpr int kSums = 3;  // of a step whose gradients are all-reduced

/// Exchanges and barriers of a step: 6 BatchNorm layers forward and backward, 2 barriers.
constexpr int kCallsPerStep = 14;

}  // namespace

TEST_CASE("a replica that throws, at any rank and any call of a step") {
  for (int rank = 0; rank < 3; ++rank) {
    for (int n = kCallsPerStep - 2; n < 2 * kCallsPerStep; ++n) {
      CAPTURE(n);
      const std::exception_ptr thrown =
          failure_under(toy_options(3, BatchNormMode::kSync),
                        at_call(rank, n, []() -> bool { throw std::bad_alloc(); }));
      CHECK(is_a<ReplicaError>(thrown));
      CHECK(text_of(thrown) == concat("replica ", rank, " (cpu:", rank, "): std::bad_alloc"));
    }
  }
}

// Not the barrier before the gradient exchange: who walks through that reads gradients while they
// are written.
TEST_CASE("a replica that leaves out a BatchNorm call, at any rank and any call of a step") {
  for (int rank = 0; rank < 3; ++rank) {
    for (int n = kCallsPerStep; n < 2 * kCallsPerStep - 2; ++n) {
      CAPTURE(n);
      const std::exception_ptr thrown = failure_under(toy_options(3, BatchNormMode::kSync),
                                                      at_call(rank, n, [] { return false; }));
      CHECK(is_a<ReplicaError>(thrown));
      CHECK(contains(text_of(thrown), concat("replica ", rank, " is at the ")));
      CHECK(contains(text_of(thrown), "every replica must make the same BatchNorm calls"));
    }
  }
}

TEST_CASE("a replica that ends its step while the others wait is named by the watchdog") {
  DataParallelOptions options = toy_options(3, BatchNormMode::kSync);
  options.communicator.stall_timeout = std::chrono::milliseconds(200);
  const std::exception_ptr thrown =
      failure_under(options, at_call(1, kCallsPerStep - 1, [] { return false; }));
  CHECK(is_a<ReplicaError>(thrown));
  CHECK(contains(text_of(thrown), " s in the barrier 'weight update'; replica 1 is missing"));
}

TEST_CASE("a replica that sleeps is named by the watchdog") {
  DataParallelOptions options = toy_options(4, BatchNormMode::kSync);
  options.communicator.stall_timeout = std::chrono::milliseconds(200);
  const std::exception_ptr thrown =
      failure_under(options, at_call(2, kCallsPerStep + 3, [] {
                      std::this_thread::sleep_for(std::chrono::milliseconds(500));
                      return true;
                    }));
  CHECK(is_a<StalledError>(thrown));
  CHECK(contains(text_of(thrown), "stalled: no progress within 0.2 s"));
  CHECK(contains(text_of(thrown), "last seen: replica 2: forward in encoder.1.1.bn, step 1"));
}

TEST_CASE("a replica that throws among all-reduces") {
  const DataParallelOptions options = all_reduced(toy_options(3, BatchNormMode::kSync));
  constexpr int kCalls = kCallsPerStep + kSums;
  for (int rank = 0; rank < 3; ++rank) {
    for (int n = kCalls - 2 - kSums; n < 2 * kCalls; ++n) {
      CAPTURE(n);
      const std::exception_ptr thrown =
          failure_under(options, at_call(rank, n, []() -> bool { throw std::bad_alloc(); }));
      CHECK(is_a<ReplicaError>(thrown));
      CHECK(text_of(thrown) == concat("replica ", rank, " (cpu:", rank, "): std::bad_alloc"));
    }
  }
}

TEST_CASE("a replica that leaves out an all-reduce or a BatchNorm call among them") {
  const DataParallelOptions options = all_reduced(toy_options(3, BatchNormMode::kSync));
  constexpr int kCalls = kCallsPerStep + kSums;
  for (int rank = 0; rank < 3; ++rank) {
    for (int n = kCalls + 6; n < 2 * kCalls - 2; ++n) {
      CAPTURE(n);
      const std::exception_ptr thrown =
          failure_under(options, at_call(rank, n, [] { return false; }));
      CHECK(is_a<ReplicaError>(thrown));
      CHECK(contains(text_of(thrown), concat("replica ", rank, " is at the ")));
    }
  }
}

TEST_CASE("a replica that sleeps in an all-reduce is named by the watchdog") {
  DataParallelOptions options = all_reduced(toy_options(3, BatchNormMode::kLocal));
  options.communicator.stall_timeout = std::chrono::milliseconds(200);
  const std::exception_ptr thrown = failure_under(options, [](int rank, const SyncCall& call) {
    if (rank == 1 && call.channels > 0 && call.index == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    return true;
  });
  CHECK(is_a<ReplicaError>(thrown));
  CHECK(contains(text_of(thrown), " s in the exchange 1 of gradients ("));
  CHECK(contains(text_of(thrown), "last seen: replica 1: all-reduce in gradients, step 0"));
}

TEST_CASE("a failure while the replicas are built") {
  DataParallelOptions options = toy_options(3, BatchNormMode::kSync);
  options.model = [model = options.model](NetworkBuilder& net, Value* x, const NormLayer& norm) {
    if (net.backend().device().ordinal == 1) throw ConfigError("no such network");
    return model(net, x, norm);
  };
  CHECK_THROWS_WITH_AS(DataParallel{options}, "replica 1 (cpu:1): no such network", ConfigError);
}

TEST_CASE("an image that does not load ends an evaluation and names its rank") {
  const auto run = make_toy(toy_options(3, BatchNormMode::kSync));
  const auto load = [](std::int64_t index) {
    if (index == 4) throw DataError("image 4 is damaged");
    return toy_batch(1, index);
  };
  CHECK_THROWS_WITH_AS(run->evaluate(9, load), "replica 1 (cpu:1): image 4 is damaged", DataError);
}

// The others have many images left when one of theirs fails, and meet nobody.
TEST_CASE("an image that does not load ends an evaluation before the others have all of theirs") {
  const auto run = make_toy(toy_options(3, BatchNormMode::kSync));
  std::atomic<int> loaded{0};
  const auto load = [&](std::int64_t index) {
    if (index == 1) throw DataError("image 1 is damaged");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ++loaded;
    return toy_batch(1, index);
  };
  CHECK_THROWS_WITH_AS(run->evaluate(9000, load), "replica 1 (cpu:1): image 1 is damaged",
                       DataError);
  CHECK(loaded < 600);
  CHECK_FALSE(run->has_stuck_thread());
  CHECK_FALSE(run->sync_group().failure());
  CHECK_NOTHROW(train(*run));
}

TEST_CASE("what an evaluation loads from is there as long as a thread that is left behind") {
  auto run = make_toy(toy_options(2, BatchNormMode::kLocal));
  std::promise<void> release, entered;
  auto images = std::make_shared<std::vector<std::int64_t>>(4, 7);
  const std::weak_ptr<std::vector<std::int64_t>> watched = images;
  {
    const auto load = [images = std::move(images), released = release.get_future().share(),
                       &entered, inside = entered.get_future().share()](std::int64_t index) {
      if (index == 1) {
        inside.wait();
        throw DataError("image 1 is damaged");
      }
      entered.set_value();
      released.wait();
      return toy_batch(1, images->at(static_cast<std::size_t>(index)));
    };
    CHECK_THROWS_AS(run->evaluate(4, load), DataError);
  }
  CHECK(run->has_stuck_thread());
  CHECK(threads_left_behind());
  CHECK_FALSE(watched.expired());
  release.set_value();
  while (run->has_stuck_thread()) std::this_thread::yield();
}

TEST_CASE("work for each replica is there as long as a thread that is left behind") {
  auto run = make_toy(toy_options(2, BatchNormMode::kLocal));
  std::promise<void> release;
  auto text = std::make_shared<std::string>("of the caller");
  const std::weak_ptr<std::string> watched = text;
  {
    const auto work = [text = std::move(text),
                       released = release.get_future().share()](const Replica& replica) {
      if (replica.rank() == 0) throw Error("out of paper");
      released.wait();
      CHECK(*text == "of the caller");
    };
    CHECK_THROWS_WITH_AS(
        run->for_each_replica(work),
        doctest::Contains("is left behind (replica 1: working in for_each_replica"), ReplicaError);
  }
  CHECK(run->has_stuck_thread());
  CHECK_FALSE(watched.expired());
  release.set_value();
  while (run->has_stuck_thread()) std::this_thread::yield();
}

namespace {

/// Holds a rank up at its first layer until the group has failed, and counts the layers it does.
struct HeldUp final : LayerObserver {
  explicit HeldUp(const SyncGroup& of) : group(of) {}
  void begin(std::size_t, Direction) override {
    ++begun;
    while (!group.failure()) std::this_thread::yield();
  }
  void end(std::size_t, Direction) override {}

  const SyncGroup& group;
  int begun = 0;
};

struct Fails final : LayerObserver {
  void begin(std::size_t, Direction) override { throw Error("no such layer"); }
  void end(std::size_t, Direction) override {}
};

}  // namespace

TEST_CASE("a replica that meets no other leaves after the layer in which another one fails") {
  const auto run = make_toy(toy_options(2, BatchNormMode::kLocal));
  HeldUp held_up(run->sync_group());
  Fails fails;
  run->replica(0).network().observe(&held_up);
  run->replica(1).network().observe(&fails);
  CHECK_THROWS_WITH_AS(train(*run), "replica 1 (cpu:1): no such layer", ReplicaError);
  CHECK(held_up.begun == 1);
  CHECK_FALSE(run->has_stuck_thread());
}

TEST_CASE("a step does not suffer from an evaluation whose loss is not finite") {
  const auto run = make_toy(toy_options(2, BatchNormMode::kSync));
  const auto spoiled = [](std::int64_t index) {
    Batch batch = toy_batch(1, index);
    std::fill(batch.images.begin(), batch.images.end(), std::numeric_limits<float>::quiet_NaN());
    return batch;
  };
  CHECK(std::isnan(run->evaluate(2, spoiled).loss));
  for (const double loss : train(*run)) CHECK(std::isfinite(loss));
}

}  // namespace lockstep::test
