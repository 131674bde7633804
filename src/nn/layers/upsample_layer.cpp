#include <algorithm>
#include <cmath>

#include "lockstep/nn/onnx.h"
#include "nn/layers/layers.h"

namespace lockstep {

UpsampleLayer::UpsampleLayer(std::string name, Value* input, Value* output, bool align_corners,
                             const Value* like)
    : Layer(std::move(name), {input}, output), align_corners_(align_corners), like_(like) {}

void UpsampleLayer::forward(Backend& backend, const StepContext&) {
  backend.pooling().upsample_bilinear_forward(inputs()[0]->data, output()->data, align_corners_);
}

void UpsampleLayer::backward(Backend& backend, const StepContext&,
                             std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  backend.pooling().upsample_bilinear_backward(output()->grad, grads[0].tensor, align_corners_,
                                               grads[0].accumulate);
}

std::optional<Positions> UpsampleLayer::reads(Positions output, int axis) const {
  const auto from = static_cast<double>(inputs()[0]->shape[axis]);
  const auto to = static_cast<double>(this->output()->shape[axis]);
  const auto center = [&](std::int64_t position) {
    const auto at = static_cast<double>(position);
    return align_corners_ ? at * (from - 1) / std::max(to - 1, 1.0) : (at + 0.5) * from / to - 0.5;
  };
  return Positions{static_cast<std::int64_t>(std::floor(center(output.first))),
                   static_cast<std::int64_t>(std::ceil(center(output.last)))};
}

std::string UpsampleLayer::export_onnx(OnnxGraph& graph) const {
  const std::string& x = graph.tensor(inputs()[0]);
  const Shape& shape = output()->shape;
  const std::string batch_and_channels = graph.add("Shape", {x}, {{"start", 0}, {"end", 2}});
  const std::string size =
      like_ == nullptr || graph.fixed_size()
          ? graph.ints("size", {2}, {shape.height(), shape.width()})
          : graph.add("Shape", {graph.tensor(like_)}, {{"start", 2}, {"end", 4}});
  const std::string sizes = graph.add("Concat", {batch_and_channels, size}, {{"axis", 0}});
  return graph.add(
      "Resize", {x, "", "", sizes},
      {{"mode", "linear"},
       {"coordinate_transformation_mode", align_corners_ ? "align_corners" : "half_pixel"}});
}

}  // namespace lockstep
