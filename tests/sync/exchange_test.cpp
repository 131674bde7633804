#include "lockstep/sync/exchange.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <thread>

#include "lockstep/sync/sync_group.h"
#include "support/devices.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep {
namespace {

using test::cpus;
using test::run_ranks;
using test::text_of;

constexpr std::int64_t kFloats = 2;  // of a slot: a part of one channel

/// An exchange with its slots.
struct Place {
  explicit Place(RankPartition groups = {}) : exchange("place", 0, std::move(groups)) {
    exchange.set_slots(slots.data(), kFloats);
  }

  /// Shows (value, value), with the value as the count.
  std::span<const StatSlot> show(Communicator& rank, int value) {
    float* const slot = exchange.next_slot();
    slot[0] = slot[1] = static_cast<float>(value);
    return exchange.show(rank, {{value, slot}, 1, Direction::kOther});
  }

  std::array<float, 2 * kFloats> slots{};
  Exchange exchange;
};

}  // namespace

TEST_CASE("an exchange without others gives back what it is shown, from any thread") {
  std::atomic<int> wrong{0};
  const auto thrown = run_ranks(3, [&](int thread) {
    Place place;
    for (int round = 1; round <= 100; ++round) {
      const auto views = place.show(lone_rank(), 1000 * thread + round);
      wrong += views.size() != 1 || views[0].count != 1000 * thread + round ||
               views[0].data[1] != static_cast<float>(1000 * thread + round);
    }
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  CHECK(wrong == 0);
}

TEST_CASE("an exchange's slots take turns, so that a rank that is late reads what it was shown") {
  constexpr int kRounds = 300;
  SyncGroup group(cpus(2));
  std::array<Place, 2> places;  // outlive the ranks
  std::atomic<int> wrong{0};
  const auto thrown = run_ranks(2, [&](int rank) {
    for (int round = 0; round < kRounds; ++round) {
      const auto views = places[static_cast<std::size_t>(rank)].show(group.at(rank), round);
      // The other rank writes its next slot meanwhile, and waits in the next round.
      if (rank == 1) std::this_thread::sleep_for(std::chrono::microseconds(100));
      for (const StatSlot& view : views) {
        wrong += view.count != round || view.data[0] != static_cast<float>(round);
      }
      wrong += views.size() != 2;
    }
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  CHECK(wrong == 0);
}

TEST_CASE("an exchange of groups shows a rank those of its group, in rank order") {
  SyncGroup group(cpus(4));
  std::vector<std::unique_ptr<Place>> places;
  for (int rank = 0; rank < 4; ++rank) {
    places.push_back(std::make_unique<Place>(RankPartition{{0, 2}, {1, 3}}));
  }
  std::atomic<int> wrong{0};
  const auto thrown = run_ranks(4, [&](int rank) {
    for (int round = 0; round < 10; ++round) {
      const auto views = places[static_cast<std::size_t>(rank)]->show(group.at(rank), 10 + rank);
      wrong +=
          views.size() != 2 || views[0].count != 10 + rank % 2 || views[1].count != 12 + rank % 2;
    }
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  CHECK(wrong == 0);
}

}  // namespace lockstep
