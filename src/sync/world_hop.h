#pragma once
// A set of ranks that lie in several processes: how the statistics of one process's ranks come to
// the others.

#include <span>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/sync/sync_group.h"
#include "sync/byte_stream.h"

namespace lockstep {

/// Owned by the callback of the set's barrier in this process, and used by it alone.
class WorldHop {
 public:
  /// `ranks`: of the set, ascending; some of them of this process, some not.
  WorldHop(SyncGroup& group, int channel, std::span<const int> ranks);

  /// Gives the slots of this process's ranks to the other processes and fills in theirs, which stay
  /// until the next call. slots: [rank of the set]. Throws ReplicaError when
  /// another process is at another call.
  void exchange(const SyncCall& call, std::span<StatSlot> slots);

 private:
  void pack(const SyncCall& call, std::span<const StatSlot> own);
  void unpack(const SyncCall& call, int process, std::span<StatSlot> slots) const;

  /// The ranks [begin, end) of the set.
  struct Place {
    std::size_t begin = 0, end = 0;
  };

  SyncGroup& group_;
  const RankLayout& layout_;
  const int channel_;
  std::vector<int> peers_;
  std::vector<Place> places_;  // [process]
  ByteWriter packed_;
  std::vector<std::span<const std::byte>> out_;  // [process]
  std::vector<Bytes> in_;                        // [process]
};

}  // namespace lockstep
