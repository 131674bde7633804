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

ChannelSliceLayer::ChannelSliceLayer(std::string name, Value* input, Value* output,
                                     std::int64_t begin)
    : Layer(std::move(name), {input}, output), begin_(begin) {}

Tensor ChannelSliceLayer::range_of(const Tensor& tensor) const {
  return tensor.channel_range(begin_, output()->shape.channels());
}

LayerWork ChannelSliceLayer::forward_work() const {
  return {.bytes = 2 * element_bytes(output()->data)};
}

void ChannelSliceLayer::forward(Backend& backend, const StepContext&) {
  backend.copy(range_of(inputs()[0]->data), output()->data, false);
}

void ChannelSliceLayer::backward(Backend& backend, const StepContext&,
                                 std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  if (!grads[0].accumulate) backend.fill(grads[0].tensor, 0.0F);
  backend.copy(output()->grad, range_of(grads[0].tensor), grads[0].accumulate);
}

std::string ChannelSliceLayer::export_onnx(OnnxGraph& graph) const {
  const std::int64_t end = begin_ + output()->shape.channels();
  return graph.add("Slice", {graph.tensor(inputs()[0]), graph.ints("begin", {1}, {begin_}),
                             graph.ints("end", {1}, {end}), graph.ints("axis", {1}, {1})});
}

}  // namespace lockstep
