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
  const Roster& roster = replicas.roster();
  if (roster.processes() == 1) return;
  ByteWriter writer;
  for (int rank = 0; rank < roster.ranks(); ++rank) {
    if (roster.process_of(rank) == roster.process) write(rank, writer);
  }
  std::vector<Bytes> all;
  replicas.all_gather(writer.bytes(), all);
  for (int process = 0; process < roster.processes(); ++process) {
    if (process == roster.process) continue;
    ByteReader reader(all[static_cast<std::size_t>(process)]);
    for (int rank = 0; rank < roster.ranks(); ++rank) {
      if (roster.process_of(rank) == process) read(rank, reader);
    }
  }
}

}  // namespace lockstep
