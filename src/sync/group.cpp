#include "lockstep/sync/group.h"

#include <algorithm>
#include <numeric>

#include "lockstep/core/check.h"

namespace lockstep {

RankPartition contiguous_groups(int ranks, int width) {
  if (ranks < 1) throw ConfigError(concat("expected at least 1 rank to group, got ", ranks));
  if (width < 0 || (width > 0 && ranks % width != 0)) {
    throw ConfigError(concat("sync_group = ", width, " does not divide the ", ranks,
                             " devices; give a divisor, or 0 for one group of all devices"));
  }
  const int size = width == 0 ? ranks : width;
  RankPartition partition;
  for (int first = 0; first < ranks; first += size) {
    std::vector<int>& set = partition.emplace_back(static_cast<std::size_t>(size));
    std::iota(set.begin(), set.end(), first);
  }
  return partition;
}

RankPartition ascending(RankPartition partition, int ranks) {
  const std::string given = to_string(partition);
  std::vector<int> all;
  bool empty = false;
  for (std::vector<int>& set : partition) {
    empty = empty || set.empty();
    std::sort(set.begin(), set.end());
    all.insert(all.end(), set.begin(), set.end());
  }
  std::sort(all.begin(), all.end());
  std::vector<int> expected(static_cast<std::size_t>(ranks));
  std::iota(expected.begin(), expected.end(), 0);
  if (empty || all != expected) {
    throw ConfigError(concat("the process groups ", given,
                             " are no partition of the ranks: give each of the ", ranks,
                             " ranks from 0 to ", ranks - 1, " in exactly one set"));
  }
  std::sort(partition.begin(), partition.end());
  return partition;
}

std::string to_string(const RankPartition& partition) {
  std::string text;
  for (const std::vector<int>& set : partition) {
    text += text.empty() ? "{" : ", {";
    for (std::size_t i = 0; i < set.size(); ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(set[i]);
    }
    text += "}";
  }
  return text;
}

}  // namespace lockstep
