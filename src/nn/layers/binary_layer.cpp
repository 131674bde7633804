#include "lockstep/nn/onnx.h"
#include "nn/layers/layers.h"

namespace lockstep {
namespace {

// A gradient that is passed on unchanged; one planned in place is there already.
void pass_on(Backend& backend, const Tensor& grad_y, const GradTarget& target) {
  if (!target.tensor || target.tensor.data == grad_y.data) return;
  backend.copy(grad_y, target.tensor, target.accumulate);
}

}  // namespace

BinaryLayer::BinaryLayer(std::string name, Value* a, Value* b, Value* output, BinaryKind kind)
    : Layer(std::move(name), {a, b}, output), kind_(kind) {}

LayerTraits BinaryLayer::traits() const {
  const bool reads = kind_ == BinaryKind::kMultiply;
  return {.reads_input = reads,
          .reads_other_inputs = reads,
          .grad_in_place = true,
          .by_image = true,
          .computes_again = true};
}

bool BinaryLayer::passes_on(std::size_t input) const {
  if (input == 0) return kind_ == BinaryKind::kAdd || kind_ == BinaryKind::kSubtract;
  return kind_ == BinaryKind::kAdd && inputs()[1]->shape == output()->shape;
}

void BinaryLayer::forward(Backend& backend, const StepContext&) {
  backend.activations().binary_forward(kind_, inputs()[0]->data, inputs()[1]->data, output()->data);
}

// The gradient of b first: that of a may overwrite the output's. The values of a sum, which the
// layer does not read, may be gone: anything of their shape stands in for them.
void BinaryLayer::backward(Backend& backend, const StepContext&,
                           std::span<const GradTarget> grads) {
  const Tensor& grad_y = output()->grad;
  const Tensor& a = kind_ == BinaryKind::kMultiply ? inputs()[0]->data : grad_y;
  const Tensor& b = inputs()[1]->data;
  const GradTarget &of_a = grads[0], &of_b = grads[1];
  if (passes_on(1)) {
    pass_on(backend, grad_y, of_b);
  } else if (of_b.tensor) {
    backend.activations().binary_backward_right(kind_, a, grad_y, of_b.tensor, of_b.accumulate);
  }
  if (passes_on(0)) {
    pass_on(backend, grad_y, of_a);
  } else if (of_a.tensor) {
    backend.activations().binary_backward_left(kind_, a, b, grad_y, of_a.tensor, of_a.accumulate);
  }
}

LayerWork BinaryLayer::backward_work(std::span<const GradTarget> grads) const {
  const Tensor& grad_y = output()->grad;
  LayerWork work;
  for (std::size_t k = 0; k < grads.size(); ++k) {
    const bool in_place = grads[k].tensor.data == grad_y.data && passes_on(k);
    if (!grads[k].tensor || in_place) continue;
    work.bytes += element_bytes(grad_y) + element_bytes(grads[k]);
    if (kind_ == BinaryKind::kMultiply) work.bytes += element_bytes(inputs()[1 - k]->data);
  }
  return work;
}

std::string BinaryLayer::export_onnx(OnnxGraph& graph) const {
  const char* const operation = kind_ == BinaryKind::kAdd        ? "Add"
                                : kind_ == BinaryKind::kSubtract ? "Sub"
                                                                 : "Mul";
  return graph.add(operation, {graph.tensor(inputs()[0]), graph.tensor(inputs()[1])});
}

}  // namespace lockstep
