#include "step/gradient_reducer.h"

#include <algorithm>
#include <set>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

bool share_a_gpu(std::span<const Device> devices) {
  std::set<int> ordinals;
  for (const Device& device : devices) ordinals.insert(device.ordinal);
  return ordinals.size() < devices.size();
}

}  // namespace

GradientExchangeChoice choose_gradient_exchange(GradientExchangeKind wanted,
                                                std::span<const Device> devices,
                                                const GpuAllReduce* gpus) {
  constexpr auto kOwner = GradientExchangeKind::kOwner;
  constexpr auto kAllReduce = GradientExchangeKind::kAllReduce;
  if (wanted != GradientExchangeKind::kAuto) return {wanted, "as asked"};
  if (devices.size() < 2) return {kOwner, "one replica"};
  if (devices.front().kind == DeviceKind::kCpu) return {kOwner, "replicas on the CPU"};
  if (share_a_gpu(devices)) return {kOwner, "replicas share a GPU"};
  if (gpus == nullptr) return {kOwner, "no NCCL in this build"};
  switch (gpus->link_between(devices)) {
    case PeerLink::kNone:
      break;
    case PeerLink::kBus:
      return {kAllReduce, "not all GPUs have NVLink between them"};
    case PeerLink::kLink:
      return {kOwner, "all GPUs have NVLink between them"};
  }
  return {kAllReduce, "not all GPUs reach each other's memory"};
}

ShardedReducer::ShardedReducer(const GradientRank& rank)
    : rank_(rank), stores_(rank.process.begin(), rank.process.end()) {}

UpdateShare ShardedReducer::share() const {
  return {rank_.rank, rank_.rank, rank_.communicator.size(), stores_};
}

std::span<const GradientPart> ShardedReducer::begin(const StepInput& input) {
  parts_.clear();
  if (!rank_.image_parts) {
    tree_.plan_by_rank(rank_.communicator.size());
    return parts_;
  }
  tree_.plan_by_image(input.parts, input.batch);
  const std::span<const GradientNode> nodes = tree_.nodes_of(rank_.rank);
  rank_.store.reserve_gradient_parts(rank_.backend, nodes.size());
  for (const GradientNode& node : nodes) {
    parts_.push_back({node.begin - nodes.front().begin, node.end - node.begin,
                      rank_.store.grads_of_part(node.part)});
  }
  return parts_;
}

void ShardedReducer::reduce(LossScaler& scaler) {
  scaler.check(rank_.store, std::max<std::size_t>(1, parts_.size()));
  rank_.communicator.barrier("gradient exchange");
}

const float* ShardedReducer::grads_of(const GradientNode& node) const {
  return stores_[static_cast<std::size_t>(node.rank - rank_.first)]->grads_of_part(node.part);
}

GradientSum ShardedReducer::sum(std::int64_t begin) {
  addends_.clear();
  for (const GradientNode& node : tree_.nodes()) addends_.push_back(grads_of(node) + begin);
  return {addends_, in_tree() ? tree_.joins() : std::span<const int>()};
}

// No rank starts a forward pass before all have updated.
void ShardedReducer::publish() { rank_.communicator.barrier("weight update"); }

}  // namespace lockstep
