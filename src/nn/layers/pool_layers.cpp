#include "nn/layers/pool_layers.h"

namespace lockstep {

MaxPoolLayer::MaxPoolLayer(std::string name, Value* input, Value* output,
                           const PoolGeometry& geometry)
    : Layer(std::move(name), {input}, output), geometry_(geometry) {}

std::size_t MaxPoolLayer::saved_bytes() const {
  return static_cast<std::size_t>(output()->shape.elements());
}

Tensor MaxPoolLayer::winners() const {
  return Tensor(winners_, output()->data.shape, DType::kUInt8);
}

LayerWork MaxPoolLayer::forward_work() const {
  LayerWork work = Layer::forward_work();
  work.bytes += element_bytes(winners());
  return work;
}

LayerWork MaxPoolLayer::backward_work(std::span<const GradTarget> grads) const {
  LayerWork work = Layer::backward_work(grads);
  work.bytes += element_bytes(winners());
  return work;
}

void MaxPoolLayer::forward(Backend& backend, const StepContext&) {
  backend.max_pool_forward(geometry_, inputs()[0]->data, output()->data, winners());
}

void MaxPoolLayer::backward(Backend& backend, const StepContext&,
                            std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  backend.max_pool_backward(geometry_, winners(), output()->grad, grads[0].tensor,
                            grads[0].accumulate);
}

AvgPoolLayer::AvgPoolLayer(std::string name, Value* input, Value* output,
                           const PoolGeometry& geometry)
    : Layer(std::move(name), {input}, output), geometry_(geometry) {}

void AvgPoolLayer::forward(Backend& backend, const StepContext&) {
  backend.avg_pool_forward(geometry_, inputs()[0]->data, output()->data);
}

void AvgPoolLayer::backward(Backend& backend, const StepContext&,
                            std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  backend.avg_pool_backward(geometry_, output()->grad, grads[0].tensor, grads[0].accumulate);
}

AdaptiveAvgPoolLayer::AdaptiveAvgPoolLayer(std::string name, Value* input, Value* output)
    : Layer(std::move(name), {input}, output) {}

void AdaptiveAvgPoolLayer::forward(Backend& backend, const StepContext&) {
  backend.adaptive_avg_pool_forward(inputs()[0]->data, output()->data);
}

void AdaptiveAvgPoolLayer::backward(Backend& backend, const StepContext&,
                                    std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  backend.adaptive_avg_pool_backward(output()->grad, grads[0].tensor, grads[0].accumulate);
}

}  // namespace lockstep
