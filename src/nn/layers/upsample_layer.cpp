#include "nn/layers/upsample_layer.h"

namespace lockstep {

UpsampleLayer::UpsampleLayer(std::string name, Value* input, Value* output, bool align_corners)
    : Layer(std::move(name), {input}, output), align_corners_(align_corners) {}

void UpsampleLayer::forward(Backend& backend, const StepContext&) {
  backend.upsample_bilinear_forward(inputs()[0]->data, output()->data, align_corners_);
}

void UpsampleLayer::backward(Backend& backend, const StepContext&,
                             std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  backend.upsample_bilinear_backward(output()->grad, grads[0].tensor, align_corners_,
                                     grads[0].accumulate);
}

}  // namespace lockstep
