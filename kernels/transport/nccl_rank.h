#pragma once
// One rank's communicator of NCCL, for whatever uses NCCL. Its calls block: one that does not has
// NCCL start a thread for every collective. They are short none the less, since a collective is
// only given to the stream, and what NCCL does on the host beside it needs the other ranks in the
// same call, which the host rendezvous has seen come.
//
// A GPU may be part of several: their collectives must be issued in the same order on all GPUs, and
// on each GPU one must be done before another one's starts. A collective holds its part of the GPU
// until all others have theirs, and there may be no room for two.

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/stream.h"
#include "lockstep/core/device.h"
#include "sync/transport.h"

namespace lockstep::gpu {

/// Throws ConfigError with `what` needs a GPU per replica and `instead` when two devices share one.
void check_distinct_gpus(std::span<const Device> devices, const std::string& what,
                         const std::string& instead);

/// So many ids, which process 0 makes for all. Collective over the processes.
std::vector<ncclUniqueId> make_nccl_ids(std::size_t count, bool first, const Broadcast& broadcast);

/// Used by its rank's thread, except `abort`. The methods return when the collective is in the
/// stream, throw Error for what NCCL reports, also of earlier collectives, and PeerAborted after
/// `abort`.
class NcclRank {
 public:
  NcclRank() = default;
  /// Frees it; nothing is under way any more. REQUIRES: no other rank's thread is needed for what
  /// is in the stream, unless it was aborted.
  ~NcclRank();
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  /// Waits inside NCCL for the other ranks. The rank's GPU is the thread's current device.
  /// REQUIRES: all ranks have said on the host that they come: until then nothing ends this wait.
  void connect(int rank, int ranks, const ncclUniqueId& id);

  /// to [ranks, floats] = `from` [floats] of every rank.
  void all_gather(const float* from, float* to, std::size_t floats, Stream stream);
  /// data [floats] = its sum over the ranks, the same bits on all.
  void all_reduce(float* data, std::size_t floats, Stream stream);

  /// Ends what is under way, also on the GPU. Safe from any thread: one that finds the rank's
  /// thread inside NCCL gives it kPatience to come out, since NCCL frees the communicator here; if
  /// it does not, it waits there for a rank that will not come, and this makes it return.
  void abort();

 private:
  template <typename Issue>
  void issue(const char* what, const Issue& call);
  void end_communicator();

  std::timed_mutex inside_;  // held inside NCCL
  std::atomic<ncclComm_t> communicator_{nullptr};
  std::atomic<bool> aborted_{false};
};

}  // namespace lockstep::gpu
