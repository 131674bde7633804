// The transport "nccl", between distinct GPUs: an all-gather of the partial statistics, which every
// rank then merges in rank order as with the other transports. The host rendezvous comes first: it
// carries the counts and checks that all ranks mean the same call, so that no rank starts a
// collective that the others do not. Memory grows before it: growing waits for the GPU, which may
// wait for a peer's collective by then.

#include <array>

#include "kernels/transport/gpu_communicator.h"
#include "kernels/transport/nccl_rank.h"

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
    meet_all("the connection of NCCL");
    nccl_.connect(rank() % ranks, ranks, (*ids_)[static_cast<std::size_t>(rank() / ranks)]);
  }

  void abort() override { nccl_.abort(); }

 private:
  std::span<const StatSlot> exchange_in_group(const SyncCall& call,
                                              const StatSlot& local) override {
    const DeviceGuard guard(ordinal());
    turn_ = 1 - turn_;
    const std::int64_t floats = 2 * call.channels;
    const std::int64_t ranks = group().ranks_per_group();
    float* gathered = grown(gathered_, turn_, ranks * floats);
    const SyncAnswer answer = meet({call, local.count, nullptr});
    const auto& counts = *static_cast<const std::vector<std::int64_t>*>(answer.payload);
    // One collective of a GPU at a time (nccl_rank.h). Sums that start later follow this one,
    // because they follow the replica's stream.
    if (AllReduce* const sums = all_reduce()) sums->finish();
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
  TwoBlocks gathered_;                          // [ranks, 2, C] each
  std::array<std::vector<StatSlot>, 2> slots_;  // [rank in the group]
  std::size_t turn_ = 0;
};

std::unique_ptr<CommunicatorGroup> make_nccl_communicators(std::span<const Device> devices,
                                                           const CommunicatorOptions& options) {
  check_distinct_gpus(devices, "the transport 'nccl'", "the transport 'event'");
  const auto run = std::make_shared<const GpuRun>(devices);
  const int ranks = static_cast<int>(devices.size());
  UniqueIds ids(options.sync_group == 0 ? 1 : static_cast<std::size_t>(ranks / options.sync_group));
  for (ncclUniqueId& id : ids) id = make_nccl_id();
  const auto shared_ids = std::make_shared<const UniqueIds>(std::move(ids));
  return std::make_unique<RendezvousGroup>(
      devices, options,
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
