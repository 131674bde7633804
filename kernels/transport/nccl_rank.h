#pragma once
// One rank's communicator of NCCL, for whatever uses NCCL. It does not block, so that a failing run
// can end it at any time. A GPU may be part of several: their collectives must be issued in the
// same order on all GPUs, and on each GPU one must be done before another one's starts. A
// collective holds its part of the GPU until all others have theirs, and there may be no room for
// two.

#include <nccl.h>

#include <cstddef>
#include <mutex>
#include <span>
#include <string>

#include "kernels/device/stream.h"
#include "lockstep/core/device.h"

namespace lockstep::gpu {

/// Throws ConfigError with `what` needs a GPU per replica and `instead` when two devices share one.
void check_distinct_gpus(std::span<const Device> devices, const std::string& what,
                         const std::string& instead);

ncclUniqueId make_nccl_id();

/// Used by its rank's thread, except `abort`. The methods return when the collective is in the
/// stream, throw Error for what NCCL reports, also of earlier collectives, and PeerAborted after
/// `abort`.
class NcclRank {
 public:
  NcclRank() = default;
  ~NcclRank() { abort(); }  // nothing is under way any more: this only frees
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  /// Waits for the other ranks, which call this at the same time. The rank's GPU is the thread's
  /// current device.
  void connect(int rank, int ranks, const ncclUniqueId& id);

  /// to [ranks, floats] = `from` [floats] of every rank.
  void all_gather(const float* from, float* to, std::size_t floats, Stream stream);
  /// data [floats] = its sum over the ranks, the same bits on all.
  void all_reduce(float* data, std::size_t floats, Stream stream);

  /// Ends what is under way, also on the GPU. Safe from any thread.
  void abort();

 private:
  template <typename Issue>
  void issue(const char* what, const Issue& call);
  void wait_until_issued(const char* what);
  void throw_if_aborted() const;

  std::mutex mutex_;
  ncclComm_t communicator_ = nullptr;
  bool aborted_ = false;
};

}  // namespace lockstep::gpu
