#include "lockstep/sync/sync_master.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <thread>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/rng.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep {
namespace {

using test::contains;
using test::is_a;
using test::run_ranks;
using test::text_of;

const std::exception_ptr kCause = std::make_exception_ptr(Error("the cause"));

/// Adds up the payloads (one int each) and answers everyone with the sum.
class Adder {
 public:
  void operator()(std::span<const SyncMessage> messages, std::span<SyncAnswer> answers) {
    turn_ = 1 - turn_;
    sums_[turn_] = 0;
    std::int64_t count = 0;
    for (const SyncMessage& message : messages) {
      sums_[turn_] += *static_cast<const int*>(message.payload);
      count += message.count;
    }
    for (SyncAnswer& answer : answers) answer = {count, &sums_[turn_]};
  }

 private:
  std::array<int, 2> sums_{};
  int turn_ = 0;
};

SyncMaster::Callback adder() {
  return [state = std::make_shared<Adder>()](auto messages, auto answers) {
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
  SyncMaster master(ranks, adder());
  const int payload = 1;
  auto thrown = run_ranks(ranks, [&](int rank) {
    master.exchange(rank, {rank == odd ? other : usual, 1, &payload});
  });
  CHECK(master.callbacks() == 0);
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
    SyncMaster master(ranks, adder(), nullptr, 0, spin);
    std::atomic<int> wrong{0};
    const int rounds = 500;
    const auto thrown = run_ranks(ranks, [&](int rank) {
      for (int round = 0; round < rounds; ++round) {
        random_delay(rank, round);
        const int payload = round * 100 + rank;
        const SyncAnswer answer = master.exchange(rank, {call(round), rank + 1, &payload});
        const int expected = ranks * round * 100 + ranks * (ranks - 1) / 2;
        wrong += *static_cast<const int*>(answer.payload) != expected;
        wrong += answer.count != ranks * (ranks + 1) / 2;
      }
    });
    for (const auto& failure : thrown) CHECK(text_of(failure) == "");
    CHECK(wrong == 0);
    CHECK(master.callbacks() == rounds);
    CHECK_FALSE(master.waiting());
  }
}

TEST_CASE("an answer stays readable until the callback runs for the second time after it") {
  SyncMaster master(3, adder());
  std::atomic<int> wrong{0};
  run_ranks(3, [&](int rank) {
    const void* previous = nullptr;
    for (int round = 0; round < 1'000; ++round) {
      const SyncAnswer answer = master.exchange(rank, {call(round), 1, &round});
      if (previous != nullptr) wrong += *static_cast<const int*>(previous) != 3 * (round - 1);
      previous = answer.payload;
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("the callback runs on rank 0's thread, with messages in rank order") {
  std::thread::id master_thread;
  std::atomic<int> wrong{0};
  SyncMaster master(4, [&](std::span<const SyncMessage> messages, std::span<SyncAnswer>) {
    wrong += std::this_thread::get_id() != master_thread;
    for (int rank = 0; rank < 4; ++rank) wrong += messages[rank].count != rank;
  });
  const auto thrown = run_ranks(4, [&](int rank) {
    if (rank == 0) master_thread = std::this_thread::get_id();
    for (int round = 0; round < 200; ++round) {
      random_delay(rank, round);
      master.exchange(rank, {call(round), rank, nullptr});
    }
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  CHECK(wrong == 0);
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

TEST_CASE("equal names in different memory are the same layer") {
  const std::string copy = "bn";
  SyncMaster master(2, [](auto, auto) {});
  const auto thrown = run_ranks(2, [&](int rank) {
    master.exchange(rank, {call(0, rank == 0 ? "bn" : copy.c_str()), 1, nullptr});
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
}

TEST_CASE("what the callback throws, everyone gets; afterwards the barrier is closed") {
  SyncMaster master(3, [](auto, auto) { throw DataError("callback"); });
  const auto thrown = run_ranks(3, [&](int rank) { master.exchange(rank, {call(0), 1, nullptr}); });
  for (const auto& failure : thrown) CHECK(is_a<DataError>(failure));
  const auto again = run_ranks(3, [&](int rank) { master.exchange(rank, {call(1), 1, nullptr}); });
  for (const auto& failure : again) {
    CHECK(is_a<PeerAborted>(failure));
    CHECK(contains(text_of(failure), "callback"));
  }
  CHECK(master.callbacks() == 0);
}

TEST_CASE("an abort before, during and after an exchange") {
  SUBCASE("before") {
    SyncMaster master(1, [](auto, auto) {});
    master.abort(kCause);
    CHECK_THROWS_AS(master.exchange(0, {call(0), 1, nullptr}), PeerAborted);
  }
  SUBCASE("while ranks wait, the master among them or not, asleep or looking") {
    for (const auto& [missing, spin] :
         {std::pair{0, 0}, std::pair{2, 0}, std::pair{0, 100'000'000}, std::pair{2, 100'000'000}}) {
      SyncMaster master(
          3, [](auto, auto) {}, nullptr, 0, std::chrono::microseconds(spin));
      const auto thrown = run_ranks(3, [&](int rank) {
        if (rank != missing) {
          master.exchange(rank, {call(0), 1, nullptr});
          return;
        }
        while (!master.waiting()) std::this_thread::yield();
        master.abort(kCause);
      });
      for (int rank = 0; rank < 3; ++rank) {
        CHECK(is_a<PeerAborted>(thrown[rank]) == (rank != missing));
      }
    }
  }
  SUBCASE("from the callback: nobody leaves before it is done with the payloads") {
    std::atomic<bool> callback_done{false};
    std::atomic<int> left_early{0};
    SyncMaster* self = nullptr;
    SyncMaster master(3, [&](auto, auto) {
      self->abort(kCause);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      callback_done = true;
    });
    self = &master;
    const auto thrown = run_ranks(3, [&](int rank) {
      try {
        master.exchange(rank, {call(0), 1, nullptr});
      } catch (const PeerAborted&) {
        left_early += !callback_done;
        throw;
      }
    });
    for (const auto& failure : thrown) CHECK(is_a<PeerAborted>(failure));
    CHECK(left_early == 0);
  }
  SUBCASE("after") {
    SyncMaster master(2, [](auto, auto) {});
    run_ranks(2, [&](int rank) { master.exchange(rank, {call(0), 1, nullptr}); });
    master.abort(kCause);
    CHECK_THROWS_AS(master.exchange(1, {call(1), 1, nullptr}), PeerAborted);
    CHECK(master.callbacks() == 1);
  }
}

TEST_CASE("a report says who waits, where, and who is missing") {
  Progress progress(5);
  progress.enter(4, "backward", "head");
  progress.set_step(4, 812);
  SyncMaster master(
      3, [](auto, auto) {}, &progress, 2);
  run_ranks(3, [&](int rank) {
    if (rank != 2) {
      CHECK_THROWS_AS(master.exchange(rank, {call(5), 1, nullptr}), PeerAborted);
      return;
    }
    std::string report;
    while (!contains(report, "replica 2 has") || !contains(report, "replica 3 has")) {
      if (const auto wait = master.waiting()) report = wait->report;
    }
    CHECK(contains(report, " s in the forward call 5 of 'bn' (4 channels)"));
    CHECK(
        contains(report, "replica 4 is missing; last seen: replica 4: backward in head, step 812"));
    master.abort(kCause);
  });
}

TEST_CASE("a master needs ranks, and a rank its place") {
  CHECK_THROWS_AS(SyncMaster(0, [](auto, auto) {}), Error);
  SyncMaster master(1, [](auto, auto) {});
  CHECK_THROWS_AS(master.exchange(1, {call(0), 1, nullptr}), Error);
}

}  // namespace lockstep
