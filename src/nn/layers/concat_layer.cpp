#include "lockstep/nn/onnx.h"
#include "nn/layers/layers.h"

namespace lockstep {

ConcatLayer::ConcatLayer(std::string name, std::vector<Value*> inputs, Value* output)
    : Layer(std::move(name), std::move(inputs), output) {}

LayerWork ConcatLayer::forward_work() const {
  LayerWork work;
  std::int64_t channel = 0;
  for (const Value* part : inputs()) {
    const Tensor place = output()->data.channel_range(channel, part->shape.channels());
    if (part->data.data != place.data) work.bytes += 2 * element_bytes(part->data);
    channel += part->shape.channels();
  }
  return work;
}

LayerWork ConcatLayer::backward_work(std::span<const GradTarget> grads) const {
  LayerWork work;
  std::int64_t channel = 0;
  for (std::size_t k = 0; k < grads.size(); ++k) {
    const std::int64_t channels = inputs()[k]->shape.channels();
    const Tensor place = output()->grad.channel_range(channel, channels);
    if (grads[k].tensor && grads[k].tensor.data != place.data) {
      work.bytes += element_bytes(place) + element_bytes(grads[k]);
    }
    channel += channels;
  }
  return work;
}

void ConcatLayer::forward(Backend& backend, const StepContext&) {
  std::int64_t channel = 0;
  for (const Value* part : inputs()) {
    const std::int64_t channels = part->shape.channels();
    const Tensor place = output()->data.channel_range(channel, channels);
    if (part->data.data != place.data) backend.copy(part->data, place, false);
    channel += channels;
  }
}

void ConcatLayer::backward(Backend& backend, const StepContext&,
                           std::span<const GradTarget> grads) {
  std::int64_t channel = 0;
  for (std::size_t k = 0; k < grads.size(); ++k) {
    const std::int64_t channels = inputs()[k]->shape.channels();
    const Tensor place = output()->grad.channel_range(channel, channels);
    if (grads[k].tensor && grads[k].tensor.data != place.data) {
      backend.copy(place, grads[k].tensor, grads[k].accumulate);
    }
    channel += channels;
  }
}

std::string ConcatLayer::export_onnx(OnnxGraph& graph) const {
  std::vector<std::string> parts;
  for (const Value* part : inputs()) parts.push_back(graph.tensor(part));
  return graph.add("Concat", parts, {{"axis", 1}});
}

}  // namespace lockstep
