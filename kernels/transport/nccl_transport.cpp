// The transport "nccl", between distinct GPUs, also of several processes: an all-gather of the
// partial statistics, which every rank then merges in rank order as with the other transports. The
// meeting on the host comes first: it carries the counts and checks that all ranks mean the same
// call, so that no rank starts a collective that the others do not. Memory grows before it: growing
// waits for the GPU, which may wait for a peer's collective by then.

#include <mutex>

#include "kernels/transport/gpu_transport.h"
#include "kernels/transport/nccl_rank.h"
#include "kernels/transport/register_nccl.h"
#include "sync/all_reduce.h"

namespace lockstep::gpu {
namespace {

/// What the ranks of a process share.
struct NcclRun {
  bool first = true;  // process 0
  Broadcast broadcast;
  std::vector<std::vector<ncclUniqueId>> ids;  // [partition][set]

  void add_ids(std::size_t sets) { ids.push_back(make_nccl_ids(sets, first, broadcast)); }
};

class NcclTransport final : public GpuTransport {
 public:
  NcclTransport(std::shared_ptr<const GpuRun> run, std::shared_ptr<NcclRun> nccl, int rank)
      : GpuTransport(std::move(run), rank), nccl_(std::move(nccl)) {}

  void attach(Backend& own, SumTransport* sums) override {
    GpuTransport::attach(own, sums);
    sums_ = sums;
  }

  void add_partition(const RankPartition& sets) override { nccl_->add_ids(sets.size()); }

  StatPost post(const SyncCall& call, const Group& group, const StatSlot& local) override {
    LOCKSTEP_CHECK(local.parts == 1, call.layer,
                   ": the transport 'nccl' exchanges as much of every ",
                   "replica, and no sums of single images; use the transport 'event'");
    make_current(ordinal());
    local_ = local.data;
    grown(gathered_, static_cast<std::int64_t>(group.ranks.size()) * 2 * call.channels);
    return {{local.count, nullptr, 1}, nullptr};  // NCCL brings the statistics
  }

  std::span<const StatSlot> receive(const SyncCall& call, const Group& group,
                                    const StatPosts& posts) override {
    make_current(ordinal());
    const std::int64_t floats = 2 * call.channels;
    const auto ranks = static_cast<std::int64_t>(posts.slots.size());
    float* gathered = grown(gathered_, ranks * floats);
    NcclRank& own = connected(group);
    // One collective of a GPU at a time (nccl_rank.h). Sums that start later follow this one,
    // because they follow the replica's stream.
    if (sums_ != nullptr) sums_->finish();
    own.all_gather(local_, gathered, static_cast<std::size_t>(floats), stream());
    backend().follow_no_kernel();  // but one of NCCL's
    slots_.clear();
    for (const StatSlot& slot : posts.slots) {
      slots_.push_back({slot.count, gathered, 1});
      gathered += floats;
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
  NcclRank& connected(const Group& group) {
    const auto partition = static_cast<std::size_t>(group.partition);
    if (partition < communicators_.size() && communicators_[partition]) {
      return *communicators_[partition];
    }
    NcclRank& own = add_communicator(partition);
    own.connect(group.rank, static_cast<int>(group.ranks.size()),
                nccl_->ids[partition][static_cast<std::size_t>(group.set)]);
    return own;
  }

  NcclRank& add_communicator(std::size_t partition) {
    const std::lock_guard lock(mutex_);
    if (communicators_.size() <= partition) communicators_.resize(partition + 1);
    communicators_[partition] = std::make_unique<NcclRank>();
    if (aborted_) communicators_[partition]->abort();
    return *communicators_[partition];
  }

  const std::shared_ptr<NcclRun> nccl_;
  SumTransport* sums_ = nullptr;
  const float* local_ = nullptr;  // of the present call
  Growing gathered_;              // [ranks, 2, C]
  std::vector<StatSlot> slots_;
  std::mutex mutex_;  // of the two below; the rank's thread alone changes the vector
  bool aborted_ = false;
  std::vector<std::unique_ptr<NcclRank>> communicators_;  // [partition]
};

Transports make_nccl_transports(const RankLayout& layout, const Broadcast& broadcast) {
  const bool alone = layout.processes() == 1;
  check_distinct_gpus(layout.own_devices(), "the transport 'nccl'",
                      alone ? "the transport 'event'" : "the transport 'host'");
  const auto run = std::make_shared<const GpuRun>(layout.own_devices());
  const auto nccl = std::make_shared<NcclRun>(NcclRun{layout.process == 0, broadcast, {}});
  nccl->add_ids(1);
  Transports transports;
  for (int rank = 0; rank < layout.own_ranks(); ++rank) {
    transports.push_back(std::make_unique<NcclTransport>(run, nccl, rank));
  }
  return transports;
}

}  // namespace

void register_nccl_transport() {
  provide_gpu_transport(TransportKind::kNccl, make_nccl_transports);
}

}  // namespace lockstep::gpu
