#pragma once
// What this process knows of its ranks, to all processes, and theirs here.

#include <utility>

#include "lockstep/parallel/data_parallel.h"
#include "sync/byte_stream.h"

namespace lockstep {

/// write(rank, writer) for each rank of this process, read(rank, reader) for those of the others,
/// in their order; nothing for one process. All processes call it.
template <typename Write, typename Read>
void share_ranks(DataParallel& replicas, const Write& write, const Read& read) {
  const RankLayout& layout = replicas.rank_layout();
  const auto for_ranks_of = [&layout](int process, const auto& work) {
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      if (layout.process_of(rank) == process) work(rank);
    }
  };
  PeerExchange()(
      replicas,
      [&](ByteWriter& writer) {
        for_ranks_of(layout.process, [&](int rank) { write(rank, writer); });
      },
      [&](int process, ByteReader& reader) {
        for_ranks_of(process, [&](int rank) { read(rank, reader); });
      });
}

}  // namespace lockstep
