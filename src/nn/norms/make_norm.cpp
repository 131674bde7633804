#include "nn/norms/make_norm.h"

#include "nn/norms/batch_norm_layer.h"
#include "nn/norms/group_norm_layer.h"

namespace lockstep {
namespace {

// What every norm has.
struct NormParts {
  std::vector<Value*> inputs;
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;
};

NormParts parts_of(const NormRequest& request, ParameterStore& store) {
  NormParts parts{.inputs = {request.x}};
  if (request.call.residual != nullptr) parts.inputs.push_back(request.call.residual);
  if (!request.norm.options.affine) return parts;
  const Shape channels{request.x->shape.channels()};
  parts.weight = &store.parameter(request.name + ".weight", channels, ParameterKind::kNorm);
  parts.bias = &store.parameter(request.name + ".bias", channels, ParameterKind::kNorm);
  return parts;
}

std::unique_ptr<Layer> make_group_norm(const NormRequest& request, ParameterStore& store,
                                       std::int64_t groups) {
  const BatchNormOptions& options = request.norm.options;
  NormParts parts = parts_of(request, store);
  // Those of a BatchNorm, so that its weights load whole.
  if (options.by_image && options.track_running_stats) {
    store.batch_norm_slices(request.name, request.x->shape.channels(), 1);
  }
  return std::make_unique<GroupNormLayer>(
      request.name, std::move(parts.inputs), request.y,
      GroupNormLayer::Config{groups, options.eps, options.eps_mode, request.call.relu},
      parts.weight, parts.bias);
}

std::unique_ptr<Layer> make_batch_norm(const NormRequest& request, ParameterStore& store) {
  NormParts parts = parts_of(request, store);
  std::vector<BatchNormState*> states;
  if (request.norm.options.track_running_stats) {
    const int slices = request.norm.options.corrects() ? request.norm.options.slices() : 1;
    states = store.batch_norm_slices(request.name, request.x->shape.channels(), slices);
  }
  return std::make_unique<BatchNormLayer>(
      request.name, std::move(parts.inputs), request.y,
      BatchNormLayer::Config{request.norm, request.call.relu, request.call_index}, parts.weight,
      parts.bias, std::move(states));
}

}  // namespace

std::unique_ptr<Layer> make_norm(const NormRequest& request, ParameterStore& store) {
  const std::int64_t groups =
      request.norm.channel_groups(request.x->shape.channels(), request.name);
  return groups > 0 ? make_group_norm(request, store, groups) : make_batch_norm(request, store);
}

}  // namespace lockstep
