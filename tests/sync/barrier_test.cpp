#include "lockstep/sync/barrier.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <thread>
#include <utility>

#include "core/rng.h"
#include "lockstep/core/check.h"
#include "lockstep/sync/group.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep {
namespace {

using test::contains;
using test::is_a;
using test::run_ranks;
using test::text_of;

const std::exception_ptr kCause = std::make_exception_ptr(Error("the cause"));

std::vector<int> ranks_below(int ranks) { return contiguous_groups(ranks, 0).front(); }

/// What a rank hands in, and what all get: a number and how many there are of it.
struct Counted {
  std::int64_t count = 0;
  const int* value = nullptr;
};
using Counter = Barrier<Counted, Counted>;

/// Adds up what the ranks hand in and answers everyone with the sum.
class Adder {
 public:
  void operator()(std::span<const Counted> messages, std::span<Counted> answers) {
    sum_ = 0;
    std::int64_t count = 0;
    for (const Counted& message : messages) {
      sum_ += *message.value;
      count += message.count;
    }
    for (Counted& answer : answers) answer = {count, &sum_};
  }

 private:
  int sum_ = 0;
};

Counter::Callback adder() {
  return [state = std::make_shared<Adder>()](const SyncCall&, auto messages, auto answers) {
    (*state)(messages, answers);
  };
}

SyncCall call(int index, const char* layer = "bn", Direction direction = Direction::kForward,
              std::int64_t channels = 4) {
  return {layer, direction, index, channels};
}

void random_delay(int rank, int round) {
  Rng rng(3, RngPurpose::kDelay, static_cast<std::uint64_t>(rank),
          static_cast<std::uint32_t>(round));
  const std::uint32_t choice = rng.below(32);
  if (choice == 0) std::this_thread::sleep_for(std::chrono::microseconds(rng.below(60)));
  if (choice < 12) std::this_thread::yield();
}

/// What every rank gets when rank `odd` makes `other` instead of `usual`.
std::vector<std::exception_ptr> disagree(int ranks, int odd, const SyncCall& usual,
                                         const SyncCall& other) {
  Failure failure;
  int callbacks = 0;
  Counter master(
      ranks_below(ranks), [&](auto&&...) { ++callbacks; }, failure);
  const int payload = 1;
  auto thrown = run_ranks(ranks, [&](int rank) {
    master.exchange(rank, rank == odd ? other : usual, {1, &payload});
  });
  CHECK(callbacks == 0);
  CHECK(failure.cause() == thrown.front());
  return thrown;
}

void check_all_threw(const std::vector<std::exception_ptr>& thrown, const std::string& text) {
  for (const auto& failure : thrown) {
    CHECK(is_a<ReplicaError>(failure));
    CHECK_FALSE(is_a<PeerAborted>(failure));
    CHECK(text_of(failure) == text);
  }
}

const std::string kRule = ": every replica must make the same BatchNorm calls in the same order";

}  // namespace

TEST_CASE("the i-th calls of all ranks meet, whatever their pace and however they wait") {
  using std::chrono::microseconds;
  for (const auto& [ranks, spin] :
       std::initializer_list<std::pair<int, microseconds>>{{1, {}},
                                                           {2, {}},
                                                           {3, {}},
                                                           {5, {}},
                                                           {8, {}},
                                                           {1, microseconds(20)},
                                                           {2, microseconds(20)},
                                                           {3, microseconds(5)}}) {
    Failure failure;
    Counter master(ranks_below(ranks), adder(), failure, nullptr, spin);
    std::atomic<int> wrong{0};
    const int rounds = 500;
    const auto thrown = run_ranks(ranks, [&](int rank) {
      for (int round = 0; round < rounds; ++round) {
        random_delay(rank, round);
        const int payload = round * 100 + rank;
        const Counted answer = master.exchange(rank, call(round), {rank + 1, &payload});
        const int expected = ranks * round * 100 + ranks * (ranks - 1) / 2;
        wrong += *answer.value != expected;
        wrong += answer.count != ranks * (ranks + 1) / 2;
      }
    });
    for (const auto& error : thrown) CHECK(text_of(error) == "");
    CHECK(wrong == 0);
    CHECK_FALSE(master.waiting());
    CHECK_FALSE(failure.raised());
  }
}

TEST_CASE("an answer stays as it is until its rank posts again") {
  Failure failure;
  Counter master(ranks_below(3), adder(), failure);
  std::atomic<int> wrong{0};
  run_ranks(3, [&](int rank) {
    for (int round = 0; round < 1'000; ++round) {
      const Counted answer = master.exchange(rank, call(round), {1, &round});
      random_delay(rank, round);  // the others are on their way to the next call
      wrong += *answer.value != 3 * round;
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("who posts last runs the callback, with messages in rank order, and nobody need wait") {
  Failure failure;
  std::vector<std::int64_t> counts;
  Counter master(
      ranks_below(3),
      [&](const SyncCall&, std::span<const Counted> messages, std::span<Counted> answers) {
        for (const Counted& message : messages) counts.push_back(message.count);
        for (std::size_t rank = 0; rank < 3; ++rank)
          answers[rank] = {messages[rank].count, nullptr};
      },
      failure);
  std::vector<int> order{0, 1, 2};
  do {
    counts.clear();
    for (const int rank : order) {
      CHECK(counts.empty());
      master.post(rank, call(0), {10 + rank, nullptr});
    }
    CHECK(counts == std::vector<std::int64_t>{10, 11, 12});
    for (const int rank : order) CHECK(master.await(rank).count == 10 + rank);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("a rank that throws between posting and waiting has handed in what it had") {
  Failure failure;
  Counter master(ranks_below(2), adder(), failure);
  const int payload = 3;  // outlives both threads
  std::atomic<bool> gone{false};
  const auto thrown = run_ranks(2, [&](int rank) {
    if (rank == 0) {
      master.post(rank, call(0), {1, &payload});
      failure.raise(kCause);
      gone = true;
      std::rethrow_exception(kCause);
    }
    while (!gone) std::this_thread::yield();
    master.exchange(rank, call(0), {1, &payload});
  });
  CHECK(text_of(thrown[0]) == "the cause");
  CHECK(is_a<PeerAborted>(thrown[1]));
}

TEST_CASE("a rank that makes another call is named, with both calls, to everyone") {
  const SyncCall usual = call(3, "encoder.2.0.bn", Direction::kBackward, 64);
  const std::string there = "the backward call 3 of 'encoder.2.0.bn' (64 channels)";
  check_all_threw(disagree(4, 1, usual, call(3, "head.bn", Direction::kBackward, 64)),
                  "replica 1 is at the backward call 3 of 'head.bn' (64 channels) while replicas "
                  "0, 2 and 3 are at " +
                      there + kRule);
  check_all_threw(disagree(3, 0, usual, call(3, "encoder.2.0.bn", Direction::kForward, 64)),
                  "replica 0 is at the forward call 3 of 'encoder.2.0.bn' (64 channels) while "
                  "replicas 1 and 2 are at " +
                      there + kRule);
  check_all_threw(disagree(3, 2, usual, call(4, "encoder.2.0.bn", Direction::kBackward, 64)),
                  "replica 2 is at the backward call 4 of 'encoder.2.0.bn' (64 channels) while "
                  "replicas 0 and 1 are at " +
                      there + kRule);
  check_all_threw(disagree(2, 1, usual, call(3, "encoder.2.0.bn", Direction::kBackward, 32)),
                  "replica 1 is at the backward call 3 of 'encoder.2.0.bn' (32 channels) while "
                  "replica 0 is at " +
                      there + kRule);
  check_all_threw(
      disagree(2, 1, usual, {"gradient exchange", Direction::kOther, 0, 0}),
      "replica 1 is at the barrier 'gradient exchange' while replica 0 is at " + there + kRule);
}

TEST_CASE("every rank that makes another call is named, in exchanges of a user's own, too") {
  Failure failure;
  Counter master(
      ranks_below(5), [](auto&&...) {}, failure);
  const auto thrown = run_ranks(5, [&](int rank) {
    const bool astray = rank == 1 || rank == 4;
    master.exchange(rank, {astray ? "my maximum" : "my sum", Direction::kOther, 0, 0});
  });
  check_all_threw(thrown,
                  "replica 1 is at the barrier 'my maximum', replica 4 is at the barrier 'my "
                  "maximum' while replicas 0, 2 and 3 are at the barrier 'my sum': every replica "
                  "must make the same calls in the same order");
}

TEST_CASE("equal names in different memory are the same layer") {
  const std::string copy = "bn";
  Failure failure;
  Counter master(
      ranks_below(2), [](auto&&...) {}, failure);
  const auto thrown = run_ranks(2, [&](int rank) {
    master.exchange(rank, call(0, rank == 0 ? "bn" : copy.c_str()), {1, nullptr});
  });
  for (const auto& error : thrown) CHECK(text_of(error) == "");
}

TEST_CASE("what the callback throws, everyone gets; afterwards the barrier is closed") {
  Failure failure;
  int callbacks = 0;
  Counter master(
      ranks_below(3),
      [&](auto&&...) {
        ++callbacks;
        throw DataError("callback");
      },
      failure);
  const auto thrown = run_ranks(3, [&](int rank) { master.exchange(rank, call(0), {1, nullptr}); });
  for (const auto& error : thrown) CHECK(is_a<DataError>(error));
  const auto again = run_ranks(3, [&](int rank) { master.exchange(rank, call(1), {1, nullptr}); });
  for (const auto& error : again) {
    CHECK(is_a<PeerAborted>(error));
    CHECK(contains(text_of(error), "callback"));
  }
  CHECK(callbacks == 1);
  CHECK(is_a<DataError>(failure.cause()));
}

TEST_CASE("a failure before, during and after an exchange") {
  SUBCASE("before") {
    Failure failure;
    Counter master(
        ranks_below(1), [](auto&&...) {}, failure);
    CHECK(failure.raise(kCause));
    CHECK_THROWS_AS(master.exchange(0, call(0), {1, nullptr}), PeerAborted);
  }
  SUBCASE("while ranks wait, the master among them or not, asleep or looking") {
    for (const auto& [missing, spin] :
         {std::pair{0, 0}, std::pair{2, 0}, std::pair{0, 100'000'000}, std::pair{2, 100'000'000}}) {
      Failure failure;
      Counter master(
          ranks_below(3), [](auto&&...) {}, failure, nullptr, std::chrono::microseconds(spin));
      const auto thrown = run_ranks(3, [&](int rank) {
        if (rank != missing) {
          master.exchange(rank, call(0), {1, nullptr});
          return;
        }
        while (!master.waiting()) std::this_thread::yield();
        failure.raise(kCause);
      });
      for (int rank = 0; rank < 3; ++rank) {
        CHECK(is_a<PeerAborted>(thrown[rank]) == (rank != missing));
      }
    }
  }
  SUBCASE("from the callback: nobody leaves before it is done with the payloads") {
    std::atomic<bool> callback_done{false};
    std::atomic<int> left_early{0};
    Failure failure;
    Counter master(
        ranks_below(3),
        [&](auto&&...) {
          failure.raise(kCause);
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          callback_done = true;
        },
        failure);
    const auto thrown = run_ranks(3, [&](int rank) {
      try {
        master.exchange(rank, call(0), {1, nullptr});
      } catch (const PeerAborted&) {
        left_early += !callback_done;
        throw;
      }
    });
    for (const auto& error : thrown) CHECK(is_a<PeerAborted>(error));
    CHECK(left_early == 0);
  }
  SUBCASE("after") {
    Failure failure;
    int callbacks = 0;
    Counter master(
        ranks_below(2), [&](auto&&...) { ++callbacks; }, failure);
    run_ranks(2, [&](int rank) { master.exchange(rank, call(0), {1, nullptr}); });
    failure.raise(kCause);
    CHECK_THROWS_AS(master.exchange(1, call(1), {1, nullptr}), PeerAborted);
    CHECK(callbacks == 1);
  }
}

TEST_CASE(
    "a failure that is raised by one barrier ends the waits in another, and the first stays") {
  Failure failure;
  Counter failing(
      ranks_below(1), [](auto&&...) { throw DataError("the first"); }, failure);
  Counter waiting(
      ranks_below(2), [](auto&&...) {}, failure);
  const auto thrown = run_ranks(2, [&](int rank) {
    if (rank == 1) {
      waiting.exchange(rank, call(0), {1, nullptr});
      return;
    }
    while (!waiting.waiting()) std::this_thread::yield();
    failing.exchange(0, call(0), {1, nullptr});
  });
  CHECK(is_a<DataError>(thrown[0]));
  CHECK(is_a<PeerAborted>(thrown[1]));
  CHECK(contains(text_of(thrown[1]), "replica 1 leaves the exchange, because of: the first"));
  CHECK_FALSE(failure.raise(kCause));
  CHECK(text_of(failure.cause()) == "the first");
}

TEST_CASE("a report says who waits, where, and who is missing") {
  Progress progress(5);
  progress.enter(4, "backward", "head");
  progress.set_step(4, 812);
  Failure failure;
  Counter master(
      {1, 3, 4}, [](auto&&...) {}, failure, &progress);
  run_ranks(3, [&](int rank) {
    if (rank != 2) {
      CHECK_THROWS_AS(master.exchange(rank, call(5), {1, nullptr}), PeerAborted);
      return;
    }
    std::string report;
    while (!contains(report, "replica 1 has") || !contains(report, "replica 3 has")) {
      if (const auto wait = master.waiting()) report = wait->report;
    }
    CHECK(contains(report, " s in the forward call 5 of 'bn' (4 channels)"));
    CHECK(
        contains(report, "replica 4 is missing; last seen: replica 4: backward in head, step 812"));
    failure.raise(kCause);
  });
}

TEST_CASE("a master needs ranks, and a rank its place") {
  Failure failure;
  CHECK_THROWS_AS(Counter(
                      {}, [](auto&&...) {}, failure),
                  Error);
  Counter master(
      {0}, [](auto&&...) {}, failure);
  CHECK_THROWS_WITH_AS(master.exchange(1, call(0), {1, nullptr}),
                       doctest::Contains("place 1 is none of the 1"), Error);
  CHECK_THROWS_WITH_AS(master.await(-1), doctest::Contains("place -1 is none of the 1"), Error);
}

// It would wait for an answer that nobody owes it, unseen by a watchdog.
TEST_CASE("an answer is due to what was posted, once") {
  Failure failure;
  Counter master({0}, adder(), failure);
  const int payload = 3;
  const auto await = [&] { static_cast<void>(master.await(0)); };
  CHECK_THROWS_WITH_AS(await(), doctest::Contains("replica 0 awaits an answer and has posted"),
                       Error);
  master.post(0, call(0), {1, &payload});
  CHECK_NOTHROW(await());
  CHECK_THROWS_WITH_AS(await(), doctest::Contains("replica 0 awaits an answer and has posted"),
                       Error);
  CHECK_FALSE(failure.raised());
}

TEST_CASE("a failure without a cause has one that says so") {
  Failure failure;
  Counter master({0}, adder(), failure);
  failure.raise(nullptr);
  CHECK(is_a<ReplicaError>(failure.cause()));
  CHECK(contains(text_of(failure.cause()), "gave no cause"));
  CHECK_THROWS_WITH_AS(master.exchange(0, call(0), {}), doctest::Contains("gave no cause"),
                       PeerAborted);
}

}  // namespace lockstep
