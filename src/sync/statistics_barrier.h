#pragma once
// Where the ranks of a group meet to exchange their partial statistics.

#include <memory>
#include <span>
#include <vector>

#include "lockstep/sync/sync_group.h"
#include "sync/transport.h"
#include "sync/world_hop.h"

namespace lockstep {

/// The barrier of those ranks of a group that are this process's, and its callback: it collects
/// what they have posted, exchanges it with the other processes that have ranks of the group, and
/// merges it, where it lies on the host. Owned by the SyncGroup.
class StatisticsBarrier {
 public:
  /// `ranks`: of the group, ascending, at least one of this process.
  StatisticsBarrier(SyncGroup& group, const std::vector<int>& ranks, int channel);
  StatisticsBarrier(const StatisticsBarrier&) = delete;
  StatisticsBarrier& operator=(const StatisticsBarrier&) = delete;

  Barrier<StatPost, StatPosts>& barrier() { return barrier_; }

 private:
  void collect(const SyncCall& call, std::span<const StatPost> posts);
  std::span<const StatSlot> merged(const SyncCall& call);

  SyncGroup& group_;
  const std::size_t first_;        // of this process, in the group
  std::vector<StatSlot> slots_;    // [group rank]
  std::vector<void*> handles_;     // [rank of this process]
  std::unique_ptr<WorldHop> hop_;  // null where all ranks are this process's
  std::vector<float> merged_;      // [2, C]
  StatSlot merged_slot_;           // speaks of it
  Barrier<StatPost, StatPosts>& barrier_;
};

}  // namespace lockstep
