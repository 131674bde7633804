#include "lockstep/sync/abortable_barrier.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "lockstep/core/check.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep {
namespace {

using test::contains;
using test::is_a;
using test::run_ranks;
using test::text_of;

const std::exception_ptr kCause = std::make_exception_ptr(Error("the cause"));

}  // namespace

TEST_CASE("nobody passes before all have come, time and again") {
  for (int parties = 1; parties <= 8; ++parties) {
    const int rounds = parties == 8 ? 10'000 : 1'000;
    AbortableBarrier barrier(parties);
    std::atomic<int> arrived{0};
    std::atomic<int> early{0};
    const auto thrown = run_ranks(parties, [&](int rank) {
      for (int round = 1; round <= rounds; ++round) {
        ++arrived;
        barrier.arrive_and_wait(rank);
        if (arrived < round * parties) ++early;
      }
    });
    for (const auto& failure : thrown) CHECK(text_of(failure) == "");
    CHECK(early == 0);
    CHECK(arrived == rounds * parties);
    CHECK_FALSE(barrier.waiting());
  }
}

TEST_CASE("an abort wakes those who wait and refuses those who come later") {
  AbortableBarrier barrier(3);
  const auto thrown = run_ranks(3, [&](int rank) {
    if (rank != 2) return barrier.arrive_and_wait(rank);
    while (!barrier.waiting() || barrier.waiting()->waiting.size() < 2) std::this_thread::yield();
    CHECK(barrier.waiting()->missing == std::vector<int>{2});
    barrier.abort(kCause);
    barrier.abort(std::make_exception_ptr(Error("a later cause")));
    barrier.arrive_and_wait(rank);
  });
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(is_a<PeerAborted>(thrown[rank]));
    CHECK(contains(text_of(thrown[rank]), "replica " + std::to_string(rank)));
    CHECK(contains(text_of(thrown[rank]), "the cause"));
  }
  CHECK_THROWS_AS(barrier.arrive_and_wait(0), PeerAborted);
}

TEST_CASE("a rank may not arrive twice, nor one that is not of the barrier") {
  CHECK_THROWS_AS(AbortableBarrier(0), Error);
  AbortableBarrier barrier(1);
  CHECK_THROWS_AS(barrier.arrive_and_wait(1), Error);
  CHECK_THROWS_AS(barrier.arrive_and_wait(-1), Error);
}

}  // namespace lockstep
