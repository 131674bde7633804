#include "kernels/transport/nccl_rank.h"

#include <chrono>
#include <thread>

#include "kernels/transport/check_nccl.h"

namespace lockstep::gpu {
namespace {

void accept(ncclResult_t result, const char* what) {
  if (result != ncclInProgress) check_nccl(result, what);
}

}  // namespace

void check_distinct_gpus(std::span<const Device> devices, const std::string& what,
                         const std::string& instead) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (devices[i].ordinal != devices[j].ordinal) continue;
      throw ConfigError(concat(what, " needs a GPU per replica, but ", to_string(devices[j]),
                               " and ", to_string(devices[i]), " share one; use ", instead));
    }
  }
}

ncclUniqueId make_nccl_id() {
  ncclUniqueId id;
  check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return id;
}

void NcclRank::connect(int rank, int ranks, const ncclUniqueId& id) {
  issue("ncclCommInitRankConfig", [&] {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return ncclCommInitRankConfig(&communicator_, ranks, id, rank, &config);
  });
}

void NcclRank::all_gather(const float* from, float* to, std::size_t floats, Stream stream) {
  issue("ncclAllGather",
        [&] { return ncclAllGather(from, to, floats, ncclFloat, communicator_, stream); });
}

void NcclRank::all_reduce(float* data, std::size_t floats, Stream stream) {
  issue("ncclAllReduce", [&] {
    return ncclAllReduce(data, data, floats, ncclFloat, ncclSum, communicator_, stream);
  });
}

void NcclRank::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  if (communicator_ != nullptr) static_cast<void>(ncclCommAbort(communicator_));
  communicator_ = nullptr;
}

template <typename Issue>
void NcclRank::issue(const char* what, const Issue& call) {
  {
    const std::lock_guard lock(mutex_);
    throw_if_aborted();
    accept(call(), what);
  }
  wait_until_issued(what);
}

// Without the mutex between two looks, so that `abort` gets in.
void NcclRank::wait_until_issued(const char* what) {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      throw_if_aborted();
      ncclResult_t state = ncclSuccess;
      check_nccl(ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError");
      accept(state, what);
      if (state == ncclSuccess) return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void NcclRank::throw_if_aborted() const {
  if (aborted_) throw PeerAborted("the NCCL communicator was aborted");
}

}  // namespace lockstep::gpu
