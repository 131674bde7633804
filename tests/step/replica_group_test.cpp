#include "step/replica_group.h"

#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <thread>

#include "lockstep/core/check.h"
#include "step/toy_training.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep {
namespace {

using test::contains;
using test::cpus;
using test::is_a;
using test::text_of;
using test::with_timeout;

constexpr std::chrono::seconds kLimit{20};

/// A group of 4 and its threads.
struct Ranks {
  explicit Ranks(const SyncGroupOptions& options = {})
      : sync(devices, options), group(devices, sync) {}

  /// What `run` throws.
  std::exception_ptr failure_of(const std::function<void(int)>& work) {
    std::exception_ptr thrown;
    with_timeout(kLimit, [&] {
      try {
        group.run(work);
      } catch (...) {
        thrown = std::current_exception();
      }
    });
    return thrown;
  }

  std::vector<Device> devices = cpus(4);
  SyncGroup sync;
  ReplicaGroup group;
};

}  // namespace

TEST_CASE("work runs once per rank, each on the same thread every time") {
  Ranks ranks;
  std::vector<std::thread::id> threads(4);
  std::atomic<int> moved{0};
  std::vector<int> calls(4);
  for (int round = 0; round < 500; ++round) {
    ranks.group.run([&](int rank) {
      if (round == 0) threads[rank] = std::this_thread::get_id();
      moved += threads[rank] != std::this_thread::get_id();
      ++calls[rank];
    });
    CHECK(calls == std::vector<int>(4, round + 1));
  }
  CHECK(moved == 0);
  CHECK(std::set<std::thread::id>(threads.begin(), threads.end()).size() == 4);
  CHECK(ranks.group.size() == 4);
  CHECK_FALSE(ranks.group.has_stuck_thread());
}

TEST_CASE("the failure of one rank ends everyone's waits and names it") {
  for (int failing = 0; failing < 4; ++failing) {
    Ranks ranks;
    const auto work = [&](int rank) {
      if (rank == failing) throw std::runtime_error("out of memory");
      ranks.sync.at(rank).barrier("end");
    };
    const std::string expected = concat("replica ", failing, " (cpu:", failing, "): out of memory");
    for (int round = 0; round < 2; ++round) {
      const std::exception_ptr thrown = ranks.failure_of(work);
      CHECK(is_a<ReplicaError>(thrown));
      CHECK_FALSE(is_a<PeerAborted>(thrown));
      CHECK(text_of(thrown) == expected);
    }
    CHECK_FALSE(ranks.group.has_stuck_thread());
  }
}

TEST_CASE("errors with an exit code of their own keep their type") {
  const auto thrown_by = [](const std::function<void()>& fail) {
    Ranks ranks;
    return ranks.failure_of([&](int rank) {
      if (rank == 2) fail();
    });
  };
  CHECK(is_a<DataError>(thrown_by([] { throw DataError("bad image"); })));
  CHECK(is_a<ConfigError>(thrown_by([] { throw ConfigError("bad key"); })));
  CHECK(is_a<NonFiniteError>(thrown_by([] { throw NonFiniteError("nan"); })));
  CHECK(is_a<ReplicaError>(thrown_by([] { throw Error("other"); })));
  const std::exception_ptr odd = thrown_by([] { throw 7; });
  CHECK(text_of(odd) == "replica 2 (cpu:2): an unknown exception");
}

TEST_CASE("an error that all ranks share is reported once, as it is") {
  Ranks ranks;
  const std::exception_ptr thrown =
      ranks.failure_of([](int) { throw NonFiniteError("step 3: the loss of replica 1 is nan"); });
  CHECK(text_of(thrown) == "step 3: the loss of replica 1 is nan");

  Ranks others;
  const std::exception_ptr mismatch = others.failure_of(
      [&](int rank) { others.sync.at(rank).barrier(rank == 1 ? "here" : "there"); });
  CHECK(
      contains(text_of(mismatch), "replica 1 is at the barrier 'here' while replicas 0, 2 and 3"));
  CHECK(text_of(mismatch).rfind("replica 1 is", 0) == 0);
}

TEST_CASE("a rank that sleeps too long: the watchdog's report is the root cause") {
  SyncGroupOptions options;
  options.stall_timeout = std::chrono::milliseconds(200);
  Ranks ranks(options);
  const std::exception_ptr thrown = ranks.failure_of([&](int rank) {
    ranks.sync.at(rank).enter("backward", "head");
    if (rank == 3) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ranks.sync.at(rank).barrier("end");
  });
  CHECK(is_a<StalledError>(thrown));
  CHECK(contains(text_of(thrown), "stalled: no progress within 0.2 s: replica 0 has waited"));
  CHECK(contains(text_of(thrown), "last seen: replica 3: backward in head"));
  CHECK_FALSE(ranks.group.has_stuck_thread());
}

TEST_CASE("a rank that does not return after a failure is left behind and named") {
  std::atomic<bool> release{false};
  std::atomic<bool> gone{false};
  Ranks ranks;
  const std::exception_ptr thrown = ranks.failure_of([&](int rank) {
    if (rank == 0) throw Error("first");
    if (rank != 1) return;
    ranks.sync.at(1).enter("forward", "the swamp");
    while (!release) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    gone = true;
  });
  const std::string text = text_of(thrown);
  CHECK(contains(text, "replica 0 (cpu:0): first"));
  CHECK(contains(text, "replica 1 (cpu:1) does not return and is left behind"));
  CHECK(contains(text, "forward in the swamp"));
  CHECK(ranks.group.has_stuck_thread());
  release = true;
  while (!gone || ranks.group.has_stuck_thread()) std::this_thread::yield();
}

}  // namespace lockstep
