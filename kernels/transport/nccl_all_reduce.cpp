// The sum of gradients between distinct GPUs: NCCL's all-reduce in a stream of its own, so that it
// runs beside the backward pass that goes on in the replica's.

#include <algorithm>
#include <optional>

#include "kernels/device/device.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/transport/nccl_rank.h"
#include "kernels/transport/register_nccl.h"
#include "lockstep/core/check.h"
#include "sync/all_reduce.h"

namespace lockstep::gpu {
namespace {

class NcclSum final : public SumTransport {
 public:
  /// `own`: the rank's place in its process.
  NcclSum(const RankLayout& layout, std::size_t own, const ncclUniqueId& id)
      : ordinal_(layout.own_devices()[own].ordinal),
        own_place_(own),
        rank_(layout.first_rank() + static_cast<int>(own)),
        ranks_(layout.ranks()),
        id_(id) {}

  void attach(Backend& backend) override {
    backend_ = dynamic_cast<GpuOperations*>(&backend);
    LOCKSTEP_CHECK(backend_ != nullptr, "replica ", rank_, " is on ", to_string(backend.device()),
                   ", but its all-reduce is one between GPUs");
    make_current(ordinal_);
    own_.emplace(ordinal_);
    nccl_.connect(rank_, ranks_, id_);
  }

  // A wait for an event is for its latest record at that time: one event serves all sums.
  void start(std::span<float* const> data, std::int64_t count) override {
    Own& own = attached();
    make_current(ordinal_);
    own.given.record(backend_->stream());
    own.given.make_wait(own.stream.get());
    nccl_.all_reduce(data[own_place_], static_cast<std::size_t>(count), own.stream.get());
  }

  void finish() override {
    Own& own = attached();
    make_current(ordinal_);
    own.summed.record(own.stream.get());
    backend_->wait_for(own.summed);
  }

  bool on_streams() const override { return true; }
  void abort() override { nccl_.abort(); }

 private:
  struct Own {
    explicit Own(int ordinal) : stream(ordinal), given(ordinal), summed(ordinal) {}

    StreamOwner stream;
    Event given;   // what the replica's stream had been given when the last sum was started
    Event summed;  // all sums started until then
  };

  Own& attached() {
    LOCKSTEP_CHECK(own_, "the all-reduce of replica ", rank_, " is not attached to a backend");
    return *own_;
  }

  const int ordinal_;
  const std::size_t own_place_;
  const int rank_, ranks_;  // of all processes
  const ncclUniqueId id_;
  GpuOperations* backend_ = nullptr;
  std::optional<Own> own_;
  NcclRank nccl_;  // last: what it still does in the stream ends first
};

SumTransports make_nccl_sums(const RankLayout& layout, const Broadcast& broadcast) {
  const std::span<const Device> devices = layout.own_devices();
  check_distinct_gpus(devices, "gradient_exchange = \"all_reduce\"", "\"owner\"");
  const ncclUniqueId id = make_nccl_ids(1, layout.process == 0, broadcast).front();
  SumTransports all;
  for (std::size_t own = 0; own < devices.size(); ++own) {
    all.push_back(std::make_unique<NcclSum>(layout, own, id));
  }
  return all;
}

PeerLink link_between(std::span<const Device> devices) {
  std::vector<int> ordinals;
  for (const Device& device : devices) ordinals.push_back(device.ordinal);
  if (!PeerAccess(ordinals).between_all(ordinals)) return PeerLink::kNone;
  const bool linked = std::all_of(ordinals.begin(), ordinals.end(), [&](int device) {
    return std::all_of(ordinals.begin(), ordinals.end(),
                       [&](int peer) { return have_link(device, peer); });
  });
  return linked ? PeerLink::kLink : PeerLink::kBus;
}

}  // namespace

void register_nccl_all_reduce() { provide_gpu_all_reduce({make_nccl_sums, link_between}); }

}  // namespace lockstep::gpu
