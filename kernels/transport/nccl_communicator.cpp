// The transport "nccl", between distinct GPUs: an all-gather of the partial statistics, which every
// rank then merges in rank order as with the other transports. The host rendezvous comes first: it
// carries the counts and checks that all ranks mean the same call, so that no rank starts a
// collective that the others do not. Communicators do not block, so that a failing run can end them
// at any time.

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <thread>

#include "kernels/transport/check_nccl.h"
#include "kernels/transport/gpu_communicator.h"

namespace lockstep::gpu {
namespace {

/// Hands every rank the counts of all, used in turn.
class GatherCounts {
 public:
  explicit GatherCounts(int ranks) {
    for (auto& counts : counts_) counts.resize(static_cast<std::size_t>(ranks));
  }

  void gather(std::span<const SyncMessage> messages, std::span<SyncAnswer> answers) {
    if (messages.front().call.direction == Direction::kOther) return;
    turn_ = 1 - turn_;
    std::vector<std::int64_t>& counts = counts_[turn_];
    std::int64_t total = 0;
    for (std::size_t rank = 0; rank < messages.size(); ++rank) {
      counts[rank] = messages[rank].count;
      total += counts[rank];
    }
    for (SyncAnswer& answer : answers) answer = {total, &counts};
  }

 private:
  std::array<std::vector<std::int64_t>, 2> counts_;  // [rank in the group]
  std::size_t turn_ = 0;
};

/// A communicator of NCCL that another thread may abort.
class NcclRank {
 public:
  ~NcclRank() { abort(); }  // nothing is under way any more: this only frees

  /// Waits for the other ranks, which call this at the same time. The device is the current one.
  void connect(int rank, int ranks, const ncclUniqueId& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    {
      const std::lock_guard lock(mutex_);
      throw_if_aborted();
      accept(ncclCommInitRankConfig(&communicator_, ranks, id, rank, &config),
             "ncclCommInitRankConfig");
    }
    finish("ncclCommInitRankConfig");
  }

  void all_gather(const float* from, float* to, std::size_t floats, Stream stream) {
    {
      const std::lock_guard lock(mutex_);
      throw_if_aborted();
      accept(ncclAllGather(from, to, floats, ncclFloat, communicator_, stream), "ncclAllGather");
    }
    finish("ncclAllGather");
  }

  /// Ends what is under way, also on the GPU. Safe from any thread.
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    if (communicator_ != nullptr) static_cast<void>(ncclCommAbort(communicator_));
    communicator_ = nullptr;
  }

 private:
  static void accept(ncclResult_t result, const char* what) {
    if (result != ncclInProgress) check_nccl(result, what);
  }

  /// Waits until what has been issued is in the stream; throws errors of earlier collectives, too.
  void finish(const char* what) {
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

  void throw_if_aborted() const {
    if (aborted_) throw PeerAborted("the NCCL communicator was aborted");
  }

  std::mutex mutex_;
  ncclComm_t communicator_ = nullptr;
  bool aborted_ = false;
};

using UniqueIds = std::vector<ncclUniqueId>;  // [sync group]

class NcclEnd final : public GpuEnd {
 public:
  NcclEnd(RendezvousGroup& all, int rank, std::shared_ptr<const GpuRun> run,
          std::shared_ptr<const UniqueIds> ids)
      : GpuEnd(all, rank, std::move(run)), ids_(std::move(ids)) {}

  void attach(Backend& own) override {
    GpuEnd::attach(own);
    const DeviceGuard guard(ordinal());
    const int ranks = group().ranks_per_group();
    nccl_.connect(rank() % ranks, ranks, (*ids_)[static_cast<std::size_t>(rank() / ranks)]);
  }

  void abort() override { nccl_.abort(); }

 private:
  std::span<const StatSlot> exchange_in_group(const SyncCall& call,
                                              const StatSlot& local) override {
    const DeviceGuard guard(ordinal());
    const SyncAnswer answer = meet({call, local.count, nullptr});
    const auto& counts = *static_cast<const std::vector<std::int64_t>*>(answer.payload);
    turn_ = 1 - turn_;
    const std::int64_t floats = 2 * call.channels;
    const auto ranks = static_cast<std::int64_t>(counts.size());
    float* gathered = grown(gathered_[turn_], ranks * floats);
    nccl_.all_gather(local.data, gathered, static_cast<std::size_t>(floats), stream());
    std::vector<StatSlot>& slots = slots_[turn_];
    slots.resize(counts.size());
    for (std::int64_t peer = 0; peer < ranks; ++peer) {
      slots[static_cast<std::size_t>(peer)] = {counts[static_cast<std::size_t>(peer)],
                                               gathered + peer * floats};
    }
    return slots;
  }

  const std::shared_ptr<const UniqueIds> ids_;
  NcclRank nccl_;
  std::array<Storage, 2> gathered_;             // [ranks, 2, C], used in turn
  std::array<std::vector<StatSlot>, 2> slots_;  // [rank in the group]
  std::size_t turn_ = 0;
};

void check_distinct(std::span<const Device> devices) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (devices[i].ordinal != devices[j].ordinal) continue;
      throw ConfigError(concat("the transport 'nccl' needs a GPU per replica, but ",
                               to_string(devices[j]), " and ", to_string(devices[i]),
                               " share one; use the transport 'event'"));
    }
  }
}

std::unique_ptr<CommunicatorGroup> make_nccl_communicators(std::span<const Device> devices,
                                                           const CommunicatorOptions& options) {
  check_distinct(devices);
  const auto run = std::make_shared<const GpuRun>(devices);
  const int ranks = static_cast<int>(devices.size());
  UniqueIds ids(options.sync_group == 0 ? 1 : static_cast<std::size_t>(ranks / options.sync_group));
  for (ncclUniqueId& id : ids) check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
  const auto shared_ids = std::make_shared<const UniqueIds>(std::move(ids));
  return std::make_unique<RendezvousGroup>(
      ranks, options,
      [](int, int width) {
        const auto gather = std::make_shared<GatherCounts>(width);
        return [gather](auto messages, auto answers) { gather->gather(messages, answers); };
      },
      [run, shared_ids](RendezvousGroup& group, int rank) {
        return std::make_unique<NcclEnd>(group, rank, run, shared_ids);
      });
}

// Here and not in register.cpp: a build without NCCL leaves this file out.
struct Registration {
  Registration() { provide_gpu_transport("nccl", make_nccl_communicators); }
};
const Registration registration;

}  // namespace
}  // namespace lockstep::gpu
