// The transport "nccl", between distinct GPUs: an all-gather of the partial statistics, which every
// rank then merges in rank order as with the other transports. The meeting on the host comes first:
// it carries the counts and checks that all ranks mean the same call, so that no rank starts a
// collective that the others do not. Memory grows before it: growing waits for the GPU, which may
// wait for a peer's collective by then.

#include <mutex>

#include "kernels/transport/gpu_transport.h"
#include "kernels/transport/nccl_rank.h"
#include "kernels/transport/register_nccl.h"
#include "lockstep/sync/all_reduce.h"

namespace lockstep::gpu {
namespace {

using UniqueIds = std::vector<std::vector<ncclUniqueId>>;  // [partition][set]

class NcclTransport final : public GpuTransport {
 public:
  NcclTransport(std::shared_ptr<const GpuRun> run, std::shared_ptr<UniqueIds> ids, int rank)
      : GpuTransport(std::move(run), rank), ids_(std::move(ids)) {}

  void attach(Backend& own, SumTransport* sums) override {
    GpuTransport::attach(own, sums);
    sums_ = sums;
  }

  void add_partition(const RankPartition& sets) override {
    std::vector<ncclUniqueId>& ids = ids_->emplace_back();
    for (std::size_t set = 0; set < sets.size(); ++set) ids.push_back(make_nccl_id());
  }

  StatPost post(const SyncCall& call, const ProcessGroup& group, const StatSlot& local) override {
    LOCKSTEP_CHECK(local.parts == 1, call.layer,
                   ": the transport 'nccl' exchanges as much of every ",
                   "replica, and no sums of single images; use the transport 'event'");
    const DeviceGuard guard(ordinal());
    local_ = local.data;
    grown(gathered_, static_cast<std::int64_t>(group.ranks.size()) * 2 * call.channels);
    return {local, nullptr};
  }

  std::span<const StatSlot> receive(const SyncCall& call, const ProcessGroup& group,
                                    const StatPosts& posts) override {
    const DeviceGuard guard(ordinal());
    const std::int64_t floats = 2 * call.channels;
    const auto ranks = static_cast<std::int64_t>(posts.slots.size());
    float* gathered = grown(gathered_, ranks * floats);
    NcclRank& own = connected(group);
    // One collective of a GPU at a time (nccl_rank.h). Sums that start later follow this one,
    // because they follow the replica's stream.
    if (sums_ != nullptr) sums_->finish();
    own.all_gather(local_, gathered, static_cast<std::size_t>(floats), stream());
    slots_.assign(posts.slots.begin(), posts.slots.end());
    for (std::int64_t peer = 0; peer < ranks; ++peer) {
      slots_[static_cast<std::size_t>(peer)].data = gathered + peer * floats;
    }
    return slots_;
  }

  void abort() override {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    for (const auto& own : communicators_) {
      if (own) own->abort();
    }
  }

 private:
  // The first exchange of a set connects its ranks: they have just met, so that all of them come.
  NcclRank& connected(const ProcessGroup& group) {
    const auto partition = static_cast<std::size_t>(group.partition);
    if (partition < communicators_.size() && communicators_[partition]) {
      return *communicators_[partition];
    }
    NcclRank& own = add_communicator(partition);
    own.connect(group.place, static_cast<int>(group.ranks.size()),
                (*ids_)[partition][static_cast<std::size_t>(group.set)]);
    return own;
  }

  NcclRank& add_communicator(std::size_t partition) {
    const std::lock_guard lock(mutex_);
    if (communicators_.size() <= partition) communicators_.resize(partition + 1);
    communicators_[partition] = std::make_unique<NcclRank>();
    if (aborted_) communicators_[partition]->abort();
    return *communicators_[partition];
  }

  const std::shared_ptr<UniqueIds> ids_;
  SumTransport* sums_ = nullptr;
  const float* local_ = nullptr;  // of the present call
  Growing gathered_;              // [ranks, 2, C]
  std::vector<StatSlot> slots_;
  std::mutex mutex_;  // of the two below; the rank's thread alone changes the vector
  bool aborted_ = false;
  std::vector<std::unique_ptr<NcclRank>> communicators_;  // [partition]
};

Transports make_nccl_transports(std::span<const Device> devices) {
  check_distinct_gpus(devices, "the transport 'nccl'", "the transport 'event'");
  const auto run = std::make_shared<const GpuRun>(devices);
  const auto ids = std::make_shared<UniqueIds>(1, std::vector<ncclUniqueId>{make_nccl_id()});
  Transports transports;
  for (int rank = 0; rank < static_cast<int>(devices.size()); ++rank) {
    transports.push_back(std::make_unique<NcclTransport>(run, ids, rank));
  }
  return transports;
}

}  // namespace

void register_nccl_transport() { provide_gpu_transport("nccl", make_nccl_transports); }

}  // namespace lockstep::gpu
