#include "lockstep/nn/onnx.h"
#include "nn/layers/layers.h"

namespace lockstep {

DropoutLayer::DropoutLayer(std::string name, Value* input, Value* output, float p,
                           std::uint64_t call)
    : Layer(std::move(name), {input}, output), p_(p), call_(call) {}

void DropoutLayer::forward(Backend& backend, const StepContext& context) {
  apply(backend, context, inputs()[0]->data, output()->data, false);
}

void DropoutLayer::backward(Backend& backend, const StepContext& context,
                            std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  apply(backend, context, output()->grad, grads[0].tensor, grads[0].accumulate);
}

std::string DropoutLayer::export_onnx(OnnxGraph& graph) const {
  return graph.tensor(inputs()[0]);  // nothing is dropped in evaluation
}

void DropoutLayer::apply(Backend& backend, const StepContext& context, const Tensor& from,
                         const Tensor& to, bool accumulate) const {
  if (context.training && p_ > 0.0F) {
    // Multiples of an odd number: distinct calls get distinct seeds, which the generator mixes.
    DeviceScalar<std::uint64_t> seed = context.seed;
    seed.value += (call_ + 1) * 0x9E3779B97F4A7C15ULL;
    backend.activations().dropout(from, to, p_, seed, context.sample_offset, accumulate);
  } else if (to.data != from.data) {
    backend.copy(from, to, accumulate);
  }
}

namespace {

// The elements of a dense tensor in the shape of another one.
Tensor shaped_as(const Tensor& like, const Tensor& tensor) {
  return {tensor.data, like.shape, tensor.dtype};
}

}  // namespace

ReshapeLayer::ReshapeLayer(std::string name, Value* input, Value* output)
    : Layer(std::move(name), {input}, output) {}

void ReshapeLayer::forward(Backend& backend, const StepContext&) {
  const Tensor& x = inputs()[0]->data;
  backend.copy(x, shaped_as(x, output()->data), false);
}

void ReshapeLayer::backward(Backend& backend, const StepContext&,
                            std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  backend.copy(shaped_as(grads[0].tensor, output()->grad), grads[0].tensor, grads[0].accumulate);
}

// The order of the elements is that of channels last, to which images are brought and back.
std::string ReshapeLayer::export_onnx(OnnxGraph& graph) const {
  const Shape& from = inputs()[0]->shape;
  const Shape& to = output()->shape;
  OnnxInts to_last{0}, to_first{0, to.rank() - 1}, extents{0};  // 0: the batch, as it is
  for (int axis = 2; axis < from.rank(); ++axis) to_last.push_back(axis);
  to_last.push_back(1);
  for (int axis = 1; axis + 1 < to.rank(); ++axis) to_first.push_back(axis);
  for (int axis = 1; axis < to.rank(); ++axis) extents.push_back(to[axis]);
  std::string y = graph.tensor(inputs()[0]);
  if (from.rank() > 2) y = graph.add("Transpose", {y}, {{"perm", to_last}});
  y = graph.add("Reshape", {y, graph.ints("shape", {to.rank()}, extents)});
  if (to.rank() > 2) y = graph.add("Transpose", {y}, {{"perm", to_first}});
  return y;
}

}  // namespace lockstep
