#include "nn/norms/group_norm_layer.h"

#include <algorithm>

#include "lockstep/nn/onnx.h"
#include "nn/layer_support.h"

namespace lockstep {

GroupNormLayer::GroupNormLayer(std::string name, std::vector<Value*> inputs, Value* output,
                               const Config& config, Parameter* weight, Parameter* bias)
    : Layer(std::move(name), std::move(inputs), output),
      config_(config),
      affine_(weight, bias),
      memory_(this->output()->shape, BatchSlices(static_cast<int>(this->output()->shape.batch()))) {
  const Shape& shape = this->output()->shape;
  const std::int64_t values = shape.rows_per_sample() * (channels() / config.groups);
  LOCKSTEP_CHECK(values > 1, this->name(), ": the statistics of ", config.groups,
                 " groups need more than one value per image and group, got 1 (input ",
                 to_string(shape), "); use fewer groups or larger images");
}

LayerTraits GroupNormLayer::traits() const {
  return {.reads_input = true,
          .reads_output = masks_by_output(),
          .saved_bytes = memory_.bytes(),
          .grad_in_place = true,
          .accumulates_from = 1,
          .by_image = true,
          .computes_again = true};
}

void GroupNormLayer::prepare(Backend& backend, bool) { by_image_ = backend.sums_by_image(); }

// An image's second pass finds it in a cache: it is read once.
LayerWork GroupNormLayer::backward_work(std::span<const GradTarget> grads) const {
  LayerWork work{.bytes = element_bytes(inputs()[0]->data) + element_bytes(output()->grad)};
  if (masks_by_output()) work.bytes += element_bytes(output()->data);
  for (const GradTarget& target : grads) work.bytes += element_bytes(target);
  return work;
}

NormSlice GroupNormLayer::image(int index) const {
  NormSlice image;
  image.x = memory_.slices().of(inputs()[0]->data, index);
  if (inputs().size() == 2) image.residual = memory_.slices().of(inputs()[1]->data, index);
  image.y = memory_.slices().of(output()->data, index);
  image.first = index;
  memory_.place(index, image);
  return image;
}

// --- forward ---

void GroupNormLayer::forward(Backend& backend, const StepContext&) {
  for (int i = 0; i < images(); ++i) forward_image(backend.norms(), image(i));
}

void GroupNormLayer::forward_image(NormOperations& norms, const NormSlice& image) const {
  const std::int64_t rows = image.x.shape.rows();
  norms.batch_norm_moments(image.x, image.moments, 1);
  norms.group_moments(
      {.slot = image.moments, .rows = rows, .channels = channels(), .groups = config_.groups});
  const StatSlot slot{rows * (channels() / config_.groups), image.moments};
  norms.batch_norm_forward({.x = image.x,
                            .residual = image.residual,
                            .y = image.y,
                            .affine = affine_.values(),
                            .slots = {&slot, 1},
                            .eps = config_.eps,
                            .eps_mode = config_.eps_mode,
                            .relu = config_.relu,
                            .saved = {image.saved},
                            .running = {}});
}

// --- backward ---

void GroupNormLayer::backward(Backend& backend, const StepContext& context,
                              std::span<const GradTarget> grads) {
  for (int i = 0; i < images(); ++i) backward_image(backend, context, i, grads);
}

void GroupNormLayer::backward_image(Backend& backend, const StepContext& context, int index,
                                    std::span<const GradTarget> grads) const {
  const NormSlice part = image(index);
  const Tensor grad_y = memory_.slices().of(output()->grad, index);
  const Tensor mask = masks_by_output() ? part.y : Tensor{};
  const bool one_tree = by_image_ && affine_.weight() != nullptr && images() > 1;
  reduce_slice(backend, context,
               {.slice = part,
                .affine = affine_,
                .grad_y = grad_y,
                .mask = mask,
                .relu = config_.relu,
                .batch = images(),
                .tree = one_tree ? &memory_ : nullptr});
  GradTarget residual = grads.size() == 2 ? grads[1] : GradTarget{};
  residual.tensor = memory_.slices().of(residual.tensor, index);
  if (!grads[0].tensor) {
    return backward_residual(backend, config_.relu, part.y, grad_y, residual);
  }
  backend.norms().group_norm_backward_apply({.x = part.x,
                                             .grad_y = grad_y,
                                             .y = mask,
                                             .affine = affine_.values(),
                                             .saved = {part.saved},
                                             .relu = config_.relu,
                                             .sums = part.sums,
                                             .groups = config_.groups,
                                             .grad_x = memory_.slices().of(grads[0].tensor, index),
                                             .grad_residual = residual.tensor,
                                             .accumulate_residual = residual.accumulate});
}

// --- export ---

// ONNX normalises the rows of [N, groups, the rest], and gets its shape back.
std::string GroupNormLayer::normalized_onnx(OnnxGraph& graph) const {
  LOCKSTEP_CHECK(config_.eps_mode == EpsMode::kAdd, name(), " (", class_name(*this),
                 "): eps_mode = \"clamp\" has no layer in ONNX");
  const auto constant = [&](const char* what, float value) {
    return graph.floats(what, {config_.groups},
                        std::vector<float>(static_cast<std::size_t>(config_.groups), value));
  };
  const std::string& x = graph.tensor(inputs()[0]);
  const std::string shape = graph.add("Shape", {x});
  const std::string rows =
      graph.add("Reshape", {x, graph.ints("groups", {3}, {0, config_.groups, -1})});
  const std::string normalized =
      graph.add("InstanceNormalization", {rows, constant("ones", 1), constant("zeros", 0)},
                {{"epsilon", config_.eps}});
  return graph.add("Reshape", {normalized, shape});
}

std::string GroupNormLayer::export_onnx(OnnxGraph& graph) const {
  std::string y = normalized_onnx(graph);
  if (affine_.weight() != nullptr) {
    OnnxInts extents(static_cast<std::size_t>(output()->shape.rank() - 1), 1);
    extents.front() = channels();
    y = graph.add("Mul", {y, graph.parameter(*affine_.weight(), extents)});
    y = graph.add("Add", {y, graph.parameter(*affine_.bias(), extents)});
  }
  if (inputs().size() == 2) y = graph.add("Add", {y, graph.tensor(inputs()[1])});
  if (config_.relu) y = graph.add("Relu", {y});
  return y;
}

}  // namespace lockstep
