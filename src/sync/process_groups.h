#pragma once
// The process groups that the ranks have joined, and where the ranks of each meet.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/sync/group.h"
#include "sync/statistics_barrier.h"

namespace lockstep {

/// All partitions of the ranks, by their numbers (SyncCall::partition); 0 is all ranks in one set.
/// They change only while all ranks of this process wait in `join`. Owned by the SyncGroup.
class ProcessGroups {
 public:
  /// `on_join` hears of each partition but the first, while the ranks wait.
  ProcessGroups(SyncGroup& group, std::function<void(const RankPartition& sets)> on_join);
  ProcessGroups(const ProcessGroups&) = delete;
  ProcessGroups& operator=(const ProcessGroups&) = delete;

  /// Returns the number of sets that are ascending; nullopt: nobody has joined them.
  std::optional<int> find(const RankPartition& sets) const;
  /// Returns the number of these sets from now on. Every rank's thread calls it, with the same
  /// ones, which nobody has joined yet; `rank`: among those of this process.
  int join(int rank, const RankPartition& sets);

  const RankPartition& sets(int partition) const;
  /// Where the ranks of a set meet that has ranks of this process.
  StatisticsBarrier& barrier(int partition, int set) const;

 private:
  struct Partition {
    RankPartition sets;
    std::vector<std::unique_ptr<StatisticsBarrier>>
        barriers;  // [set] null: no rank of this process
  };

  void add(const RankPartition& sets);
  int answer(std::span<const RankPartition* const> wanted);

  SyncGroup& group_;
  const std::function<void(const RankPartition& sets)> on_join_;
  std::vector<Partition> partitions_;
  int channels_ = kFirstGroupChannel;            // of the world, in use
  Barrier<const RankPartition*, int>& joining_;  // what a rank wants to join, and its number
};

}  // namespace lockstep
