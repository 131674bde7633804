#include "kernels/transport/nccl_rank.h"

#include <sys/statvfs.h>

#include <chrono>
#include <cstring>

#include "kernels/transport/check_nccl.h"

namespace lockstep::gpu {
namespace {

constexpr std::chrono::milliseconds kPatience{200};

constexpr const char* kNetworkAdvice =
    "; NCCL needs a network interface even within one machine: where there is none but the "
    "loopback, set NCCL_SOCKET_IFNAME=lo";

/// What to do when the ranks do not find each other, by what NCCL says of it.
std::string advice_on_set_up(const std::string& error) {
  const auto says = [&error](const char* word) { return error.find(word) != std::string::npos; };
  if (!says("/dev/shm") && !says("shared memory")) return kNetworkAdvice;
  std::string room = "which cannot be looked at here";
  struct statvfs shm = {};
  if (statvfs("/dev/shm", &shm) == 0) {
    room = concat("which has ", (shm.f_blocks * shm.f_frsize) >> 20U, " MiB here, ",
                  (shm.f_bavail * shm.f_frsize) >> 20U, " of them free");
  }
  return concat("; between GPUs that do not reach each other's memory NCCL uses /dev/shm, ", room,
                " (containers are given 64): start the container with --shm-size=1g or --ipc=host");
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

std::vector<ncclUniqueId> make_nccl_ids(std::size_t count, bool first, const Broadcast& broadcast) {
  std::vector<ncclUniqueId> ids(count);
  for (std::size_t i = 0; first && i < count; ++i) {
    check_nccl(ncclGetUniqueId(&ids[i]), "ncclGetUniqueId", kNetworkAdvice);
  }
  const auto own = std::as_bytes(std::span(ids));
  const Bytes all = broadcast(Bytes(own.begin(), own.end()));
  LOCKSTEP_CHECK(all.size() == own.size(), "process 0 sent ", all.size(), " bytes of ids of NCCL, ",
                 "expected ", own.size());
  std::memcpy(ids.data(), all.data(), all.size());
  return ids;
}

void NcclRank::connect(int rank, int ranks, const ncclUniqueId& id) {
  issue("ncclCommInitRankConfig", [&] {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    ncclComm_t made = nullptr;
    const ncclResult_t result = ncclCommInitRankConfig(&made, ranks, id, rank, &config);
    if (!aborted_ && result != ncclSuccess) {
      check_nccl(result, "ncclCommInitRankConfig", advice_on_set_up(ncclGetLastError(nullptr)));
    }
    communicator_ = made;
    return result;
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

// An abort would do, too, but it also ends what other ranks have yet to take from this one.
NcclRank::~NcclRank() {
  if (const ncclComm_t own = communicator_.exchange(nullptr)) {
    static_cast<void>(ncclCommDestroy(own));
  }
}

void NcclRank::abort() {
  aborted_ = true;
  const std::unique_lock lock(inside_, kPatience);
  end_communicator();
}

void NcclRank::end_communicator() {
  if (const ncclComm_t own = communicator_.exchange(nullptr)) {
    static_cast<void>(ncclCommAbort(own));
  }
}

// What a call returns after an abort does not matter: it may have been interrupted.
template <typename Issue>
void NcclRank::issue(const char* what, const Issue& call) {
  const std::lock_guard lock(inside_);
  ncclResult_t result = ncclSuccess;
  if (!aborted_) {
    if (const ncclComm_t own = communicator_) {
      check_nccl(ncclCommGetAsyncError(own, &result), "ncclCommGetAsyncError");
      check_nccl(result, "an earlier collective");
    }
    result = call();
  }
  if (aborted_) {
    end_communicator();  // one that was made meanwhile
    throw PeerAborted("the NCCL communicator was aborted");
  }
  check_nccl(result, what);
}

}  // namespace lockstep::gpu
