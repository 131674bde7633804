#include "sync/process_groups.h"

#include <algorithm>

#include "lockstep/core/check.h"

namespace lockstep {

ProcessGroups::ProcessGroups(SyncGroup& group,
                             std::function<void(const RankPartition& sets)> on_join)
    : group_(group),
      on_join_(std::move(on_join)),
      joining_(group.make_barrier<const RankPartition*, int>(
          [this](const SyncCall&, std::span<const RankPartition* const> wanted,
                 std::span<int> answers) { std::ranges::fill(answers, answer(wanted)); })) {
  add(contiguous_groups(group.size(), 0));
}

std::optional<int> ProcessGroups::find(const RankPartition& sets) const {
  const auto found = std::ranges::find(partitions_, sets, &Partition::sets);
  if (found == partitions_.end()) return std::nullopt;
  return static_cast<int>(found - partitions_.begin());
}

int ProcessGroups::join(int rank, const RankPartition& sets) {
  return joining_.exchange(rank, {"process groups", Direction::kOther, 0, 0}, &sets);
}

const RankPartition& ProcessGroups::sets(int partition) const {
  return partitions_[static_cast<std::size_t>(partition)].sets;
}

StatisticsBarrier& ProcessGroups::barrier(int partition, int set) const {
  const Partition& joined = partitions_[static_cast<std::size_t>(partition)];
  return *joined.barriers[static_cast<std::size_t>(set)];
}

void ProcessGroups::add(const RankPartition& sets) {
  Partition joined{sets, {}};
  for (const std::vector<int>& ranks : sets) {
    const int channel = partitions_.empty() ? int{kStepChannel} : channels_++;
    joined.barriers.push_back(group_.rank_layout().own_of(ranks).empty()
                                  ? nullptr
                                  : std::make_unique<StatisticsBarrier>(group_, ranks, channel));
  }
  partitions_.push_back(std::move(joined));
}

int ProcessGroups::answer(std::span<const RankPartition* const> wanted) {
  const RankPartition& sets = *wanted.front();
  for (std::size_t rank = 1; rank < wanted.size(); ++rank) {
    if (*wanted[rank] == sets) continue;
    const int first = group_.rank_layout().first_rank();
    throw ReplicaError(concat("replica ", first + static_cast<int>(rank),
                              " joins the process groups ", to_string(*wanted[rank]),
                              " while replica ", first, " joins ", to_string(sets),
                              ": every replica must join the same ones in the same order"));
  }
  add(sets);
  on_join_(sets);
  return static_cast<int>(partitions_.size()) - 1;
}

}  // namespace lockstep
