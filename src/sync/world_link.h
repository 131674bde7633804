#pragma once
// What the ranks of this process say to those of others: the World, until the group fails.

#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/sync/barrier.h"
#include "lockstep/sync/threading.h"
#include "lockstep/sync/world.h"

namespace lockstep {

/// This process's end of the talk between processes. Owned by the SyncGroup, whose failure ends it
/// and whose watchdog sees it. One process alone hears itself.
class WorldLink {
 public:
  /// All of these outlive the object.
  WorldLink(World& world, const RankLayout& layout, const Failure& failure,
            const Progress& progress);
  WorldLink(const WorldLink&) = delete;
  WorldLink& operator=(const WorldLink&) = delete;

  /// As SyncGroup::exchange.
  void exchange(int channel, std::span<const int> peers,
                std::span<const std::span<const std::byte>> out, std::span<Bytes> in);
  /// What process 0 says, in the order of what happens in a step, where process groups are joined,
  /// or before it.
  Bytes broadcast(const Bytes& own);
  /// As SyncGroup::all_gather.
  void all_gather(std::span<const std::byte> own, std::vector<Bytes>& all);

  /// As SyncGroup::explain_failure.
  std::string explain_failure(const std::string& heard) const;
  /// For how long an all_gather has waited; none is under way: nullopt.
  std::optional<AnyBarrier::Wait> gathering() const;
  /// "; no answer from ..." for each process that a call waits for.
  std::string unanswered() const;

 private:
  void mark_gathering(std::optional<threading::Clock::time_point> since);

  World& world_;
  const RankLayout& layout_;
  const Failure& failure_;
  const Progress& progress_;
  const std::vector<int> peers_;
  std::vector<std::span<const std::byte>> said_;  // [process] what an all_gather gives
  mutable threading::Mutex mutex_;
  std::optional<threading::Clock::time_point> gathering_since_;
};

}  // namespace lockstep
