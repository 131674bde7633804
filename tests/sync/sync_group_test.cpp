// What a program with threads of its own uses: a group, its ranks' ends, and barriers of its own.

#include "lockstep/sync/sync_group.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "lockstep/core/check.h"
#include "support/devices.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep {
namespace {

using test::contains;
using test::cpus;
using test::is_a;
using test::run_ranks;
using test::text_of;

using Sums = Barrier<double, double>;

/// Answers everyone with the sum of what the ranks hand in.
Sums::Callback sum_of_values() {
  return [](const SyncCall&, std::span<const double> values, std::span<double> answers) {
    double sum = 0;
    for (const double value : values) sum += value;
    std::fill(answers.begin(), answers.end(), sum);
  };
}

const SyncCall kSum{"my sum", Direction::kOther, 0, 0};

double summed(Sums& sums, int rank, double value) { return sums.exchange(rank, kSum, value); }

/// Waits until `ranks` ranks wait in it.
void wait_for_waiters(const AnyBarrier& master, int ranks) {
  for (;;) {
    const auto wait = master.waiting();
    int waiters = 0;
    for (int rank = 0; wait && rank < 8; ++rank) {
      waiters += contains(wait->report, "replica " + std::to_string(rank) + " has waited");
    }
    if (waiters >= ranks) return;
    std::this_thread::yield();
  }
}

}  // namespace

TEST_CASE("a user's own callback barrier, between exchanges of statistics") {
  SyncGroup group(cpus(4));
  Sums& sums = group.make_barrier<double, double>(sum_of_values());
  const float statistics[2] = {1, 2};
  std::atomic<int> wrong{0};
  const auto thrown = run_ranks(4, [&](int rank) {
    for (int round = 0; round < 200; ++round) {
      wrong += summed(sums, rank, 10.0 * round + rank) != 40.0 * round + 6;
      const auto slots =
          group.at(rank).all_show({"bn", Direction::kForward, round, 1}, {1, statistics});
      wrong += slots.size() != 4;
    }
    group.at(rank).barrier("end");
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  CHECK(wrong == 0);
  CHECK(group.callbacks(Direction::kForward) == 200);  // once for all ranks
  CHECK(group.callbacks(Direction::kBackward) == 0);
  CHECK(group.callbacks(Direction::kOther) == 1);  // the user's own do not count
}

TEST_CASE("a rank that fails ends the waits in a user's own barrier and in the group's") {
  SyncGroup group(cpus(4));
  Sums& sums = group.make_barrier<double, double>(sum_of_values());
  const auto thrown = run_ranks(4, [&](int rank) {
    if (rank == 3) {
      wait_for_waiters(sums, 2);
      group.abort(std::make_exception_ptr(DataError("no such file")));
    } else if (rank == 2) {
      group.at(rank).barrier("end");
    } else {
      summed(sums, rank, 1);
    }
  });
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(is_a<PeerAborted>(thrown[rank]));
    CHECK(contains(text_of(thrown[rank]), "because of: no such file"));
  }
  CHECK(is_a<DataError>(group.failure()));
  CHECK_THROWS_AS(summed(sums, 0, 1), PeerAborted);
}

TEST_CASE("what a user's callback throws ends the group") {
  SyncGroup group(cpus(3));
  Sums& broken =
      group.make_barrier<double, double>([](auto&&...) { throw DataError("not a number"); });
  const auto thrown = run_ranks(3, [&](int rank) { broken.exchange(rank, kSum); });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "not a number");
  CHECK(is_a<DataError>(group.failure()));
  CHECK_THROWS_AS(group.at(1).barrier("end"), PeerAborted);
}

TEST_CASE("the watchdog names who is missing in a user's own barrier") {
  SyncGroupOptions options;
  options.stall_timeout = std::chrono::milliseconds(100);
  SyncGroup group(cpus(3), options);
  Sums& sums = group.make_barrier<double, double>(sum_of_values());
  const auto thrown = run_ranks(3, [&](int rank) {
    if (rank == 1) {
      group.at(rank).enter("reading", "a slow disk");
      while (!group.failure()) std::this_thread::yield();
      return;
    }
    summed(sums, rank, 1);
  });
  CHECK(is_a<PeerAborted>(thrown[0]));
  CHECK(is_a<PeerAborted>(thrown[2]));
  CHECK(is_a<StalledError>(group.failure()));
  const std::string text = text_of(group.failure());
  CHECK(contains(text, "stalled: no progress within 0.1 s: replica 0 has waited "));
  CHECK(contains(text, " s in the barrier 'my sum'"));
  CHECK(contains(text, "replica 1 is missing; last seen: replica 1: reading in a slow disk"));
}

// As a program without DataParallel does it. The ranks' memory is the owner's, who joins the
// threads before it goes.
TEST_CASE("three threads of a user: one throws, and all leave within a second") {
  struct Rank {
    std::unique_ptr<Backend> backend;
    std::vector<float> x, y, moments, saved;
  };
  constexpr std::int64_t kRows = 6, kChannels = 2;
  const std::vector<Device> devices = cpus(3);
  SyncGroup group(devices);
  std::vector<Rank> ranks(3);
  std::vector<std::thread> threads;
  std::atomic<int> steps{0};
  const auto step = [&](int rank, int number) {
    Rank& own = ranks[static_cast<std::size_t>(rank)];
    Communicator& communicator = group.at(rank);
    communicator.begin_step(number);
    own.backend->norms().batch_norm_moments({own.x.data(), Shape{kRows, kChannels}},
                                            own.moments.data(), 1);
    if (rank == 1 && number == 50) throw DataError("image 7 is damaged");
    BatchNormForward forward;
    forward.x = {own.x.data(), Shape{kRows, kChannels}};
    forward.y = {own.y.data(), Shape{kRows, kChannels}};
    forward.slots = communicator.all_show({"bn", Direction::kForward, 0, kChannels},
                                          {kRows, own.moments.data()});
    forward.saved = {own.saved.data()};
    own.backend->norms().batch_norm_forward(forward);
    communicator.barrier("end of step");
    ++steps;
  };
  std::chrono::steady_clock::time_point failed_at;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Rank& own = ranks[static_cast<std::size_t>(rank)];
        own.backend = make_backend(devices[static_cast<std::size_t>(rank)], 1);
        own.x.assign(kRows * kChannels, static_cast<float>(rank));
        own.y.resize(kRows * kChannels);
        own.moments.resize(2 * kChannels);
        own.saved.resize(3 * kChannels);
        for (int number = 0; number < 1000; ++number) step(rank, number);
      } catch (...) {
        if (rank == 1) failed_at = std::chrono::steady_clock::now();
        group.abort(std::current_exception());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(std::chrono::steady_clock::now() - failed_at < std::chrono::seconds(1));
  CHECK(steps <= 3 * 50);  // a rank may be on its way out of the last barrier
  CHECK(steps >= 3 * 49);
  CHECK(is_a<DataError>(group.failure()));
  CHECK(text_of(group.failure()) == "image 7 is damaged");
  for (const Rank& own : ranks) CHECK(own.saved[0] == 1.0F);  // the mean of 0, 1 and 2
}

TEST_CASE("a thread that leaves without a word ends the others at once, and is named") {
  for (const bool throws : {true, false}) {
    CAPTURE(throws);
    SyncGroup group(cpus(3));
    Sums& sums = group.make_barrier<double, double>(sum_of_values());
    const auto thrown = run_ranks(3, [&](int rank) {
      RankGuard guard(group, rank);
      if (rank == 1 && throws) throw DataError("image 7 is damaged");
      if (rank == 1) return;
      summed(sums, rank, 1);
      guard.finish();
    });
    CHECK(is_a<PeerAborted>(thrown[0]));
    CHECK(is_a<PeerAborted>(thrown[2]));
    CHECK(is_a<ReplicaError>(group.failure()));
    CHECK(contains(text_of(group.failure()),
                   throws ? "replica 1 (cpu:1) left by an exception; last seen at replica 1"
                          : "replica 1 (cpu:1) left before it was finished; last seen at"));
  }
}

TEST_CASE("threads that finish leave the group as it is") {
  SyncGroup group(cpus(2));
  Sums& sums = group.make_barrier<double, double>(sum_of_values());
  for (const auto& thrown : run_ranks(2, [&](int rank) {
         RankGuard guard(group, rank);
         CHECK(summed(sums, rank, 2) == 4);
         guard.finish();
       })) {
    CHECK(text_of(thrown) == "");
  }
  CHECK_FALSE(group.failure());
}

TEST_CASE("a rank that a group does not have is an error") {
  SyncGroup group(cpus(2));
  for (const int rank : {-1, 2, 17}) {
    CHECK_THROWS_WITH_AS(group.at(rank), doctest::Contains("this process has the ranks 0 to 1"),
                         Error);
    CHECK_THROWS_AS(RankGuard(group, rank), Error);
  }
  group.abort(nullptr);
  CHECK(contains(text_of(group.failure()), "gave no cause"));
}

}  // namespace lockstep
