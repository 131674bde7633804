#pragma once
// The reference transport: statistics lie in host memory and the master's thread merges them in
// rank order. One merged slot answers every rank of a group, so all ranks normalise by the same
// bits.

#include <memory>

#include "lockstep/sync/communicator.h"

namespace lockstep {

/// The callback of a sync group of `ranks` ranks that post their statistics in host memory: answers
/// each with the merged ones.
SyncMaster::Callback make_host_merge(int ranks);

/// REQUIRES: options.sync_group is 0 or divides the number of devices, all of the CPU.
std::unique_ptr<CommunicatorGroup> make_host_communicators(std::span<const Device> devices,
                                                           const CommunicatorOptions& options);

}  // namespace lockstep
