#include "nn/norms/group_norm_layer.h"

#include "lockstep/nn/onnx.h"
#include "nn/layer_support.h"

namespace lockstep {

GroupNormLayer::GroupNormLayer(std::string name, std::vector<Value*> inputs, Value* output,
                               const Config& config, Parameter* weight, Parameter* bias)
    : Layer(std::move(name), std::move(inputs), output), config_(config), affine_(weight, bias) {
  const Shape& shape = this->output()->shape;
  const std::int64_t values = shape.rows_per_sample() * (channels() / config.groups);
  if (values > 1) return;
  throw ConfigError(concat(this->name(), ": the statistics of ", config.groups,
                           " groups need more than one value per image and group, got ", values,
                           " (input ", to_string(shape), "); use fewer groups or larger images"));
}

LayerTraits GroupNormLayer::traits() const {
  const auto floats = static_cast<std::size_t>(output()->shape.batch() * 7 * channels());
  return {.reads_input = true,
          .reads_output = masks_by_output(),
          .saved_bytes = floats * sizeof(float),
          .grad_in_place = true,
          .accumulates_from = 1,
          .by_image = true,
          .computes_again = true};
}

// An image's second pass finds it in a cache: it is read once.
LayerWork GroupNormLayer::backward_work(std::span<const GradTarget> grads) const {
  LayerWork work{.bytes = element_bytes(inputs()[0]->data) + element_bytes(output()->grad)};
  if (masks_by_output()) work.bytes += element_bytes(output()->data);
  for (const GradTarget& target : grads) work.bytes += element_bytes(target);
  return work;
}

void GroupNormLayer::forward(Backend& backend, const StepContext&) {
  backend.norms().group_norm_forward(
      {.x = inputs()[0]->data,
       .residual = inputs().size() == 2 ? inputs()[1]->data : Tensor{},
       .y = output()->data,
       .affine = affine_.values(),
       .groups = config_.groups,
       .eps = config_.eps,
       .eps_mode = config_.eps_mode,
       .relu = config_.relu,
       .saved = saved_,
       .work = work()});
}

void GroupNormLayer::backward(Backend& backend, const StepContext& context,
                              std::span<const GradTarget> grads) {
  for_each_gradient_part(context, images(), [&](const GradientPart& part) {
    backward_part(backend.norms(), part, grads);
  });
  if (grads[0].tensor || grads.size() == 1) return;
  backward_residual(backend, config_.relu, output()->data, output()->grad, grads[1]);
}

void GroupNormLayer::backward_part(NormOperations& norms, const GradientPart& part,
                                   std::span<const GradTarget> grads) const {
  const auto of = [&](const Tensor& tensor) {
    return tensor ? tensor.sample_range(part.first, part.count) : tensor;
  };
  const GradTarget residual = grads.size() == 2 && grads[0].tensor ? grads[1] : GradTarget{};
  norms.group_norm_backward({.x = of(inputs()[0]->data),
                             .grad_y = of(output()->grad),
                             .y = masks_by_output() ? of(output()->data) : Tensor{},
                             .affine = affine_.values(),
                             .groups = config_.groups,
                             .relu = config_.relu,
                             .saved = saved_ + part.first * 3 * channels(),
                             .work = work() + part.first * 4 * channels(),
                             .grad_weight = gradient(affine_.weight(), part),
                             .grad_bias = gradient(affine_.bias(), part),
                             .grad_x = of(grads[0].tensor),
                             .grad_residual = of(residual.tensor),
                             .accumulate_residual = residual.accumulate});
}

// --- export ---

// ONNX normalises the rows of [N, groups, the rest], and gets its shape back.
std::string GroupNormLayer::normalized_onnx(OnnxGraph& graph) const {
  if (config_.eps_mode == EpsMode::kClamp) {
    throw ConfigError(concat(name(), " (", class_name(*this), "): eps_mode = \"clamp\" has no ",
                             "layer in ONNX; export safetensors, or train with \"add\""));
  }
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
