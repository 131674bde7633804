#include "lockstep/nn/norm_layer.h"

#include "lockstep/nn/network.h"

namespace lockstep {
namespace {

BatchNormOptions with_mode(BatchNormOptions options, BatchNormMode mode) {
  options.mode = mode;
  return options;
}

}  // namespace

Value* NormLayer::operator()(NetworkBuilder& net, Value* x, const std::string& name,
                             const NormCall& call) const {
  return net.batch_norm(x, name, *this, call);
}

BatchNorm1d::BatchNorm1d(const BatchNormOptions& batch_norm)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kLocal)) {
  most_rank = 3;
}

BatchNorm2d::BatchNorm2d(const BatchNormOptions& batch_norm)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kLocal)) {
  least_rank = most_rank = 4;
}

BatchNorm3d::BatchNorm3d(const BatchNormOptions& batch_norm)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kLocal)) {
  least_rank = most_rank = 5;
}

SyncBatchNorm::SyncBatchNorm(const BatchNormOptions& batch_norm,
                             const RankPartition& process_groups)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kSync)) {
  if (!process_groups.empty()) options.process_groups = process_groups;
}

GhostBatchNorm::GhostBatchNorm(int virtual_devices, const BatchNormOptions& batch_norm)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kGhost)) {
  options.virtual_devices = virtual_devices;
}

FrozenBatchNorm::FrozenBatchNorm(const BatchNormOptions& batch_norm)
    : NormLayer(with_mode(batch_norm, BatchNormMode::kLocal)) {
  frozen = true;
}

}  // namespace lockstep
