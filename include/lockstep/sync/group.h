#pragma once
// Groups of ranks that meet: which of them share their BatchNorm statistics.

#include <string>
#include <vector>

namespace lockstep {

class Communicator;  // lockstep/sync/communicator.h

/// Returns the end of a group of one, for a device that computes alone: it waits for nobody, and
/// gets back what it shows. The process has one of them. Any thread may give it to layers, losses
/// and Exchange::show; its own `all_show`, `barrier` and `join` are for one thread at a time.
Communicator& lone_rank();

/// Sets of ranks that exchange statistics among themselves; every rank is in exactly one. The order
/// of the sets, and of the ranks in a set, does not matter: statistics are merged by ascending
/// rank.
using RankPartition = std::vector<std::vector<int>>;

/// Returns runs of `width` consecutive ranks: {0, 1}, {2, 3} for 4 ranks and width 2. Width 0: all
/// ranks in one set. Throws ConfigError when the width does not divide the number of ranks.
RankPartition contiguous_groups(int ranks, int width);

/// Returns the same sets, ascending. Throws ConfigError unless each of the ranks 0...ranks-1 is in
/// exactly one set and no set is empty.
RankPartition ascending(RankPartition partition, int ranks);

/// One set of a partition, as a rank of it sees it.
struct Group {
  int partition = 0;       // its number (SyncCall::partition)
  int set = 0;             // index of the set in the partition
  std::vector<int> ranks;  // ascending
  int rank = 0;            // the group rank: this rank's place in `ranks`
  int own_rank = 0;        // its place among those of them that are this process's
};

/// "{0, 1}, {2, 3}".
std::string to_string(const RankPartition& partition);

}  // namespace lockstep
