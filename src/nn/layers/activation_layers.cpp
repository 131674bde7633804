#include "backend/element_functions.h"
#include "lockstep/nn/onnx.h"
#include "nn/layers/layers.h"

namespace lockstep {

ActivationLayer::ActivationLayer(std::string name, Value* input, Value* output,
                                 const Activation& activation)
    : Layer(std::move(name), {input}, output), activation_(activation) {}

LayerTraits ActivationLayer::traits() const {
  const bool from_output = activation_.from_output();
  return {.reads_input = !from_output,
          .reads_output = from_output,
          .grad_in_place = true,
          .by_image = true,
          .computes_again = true};
}

const Tensor& ActivationLayer::saved() const {
  return activation_.from_output() ? output()->data : inputs()[0]->data;
}

void ActivationLayer::forward(Backend& backend, const StepContext&) {
  backend.activations().activation_forward(activation_, inputs()[0]->data, output()->data);
}

void ActivationLayer::backward(Backend& backend, const StepContext&,
                               std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  backend.activations().activation_backward(activation_, saved(), output()->grad, grads[0].tensor,
                                            grads[0].accumulate);
}

namespace {

/// What activations are in ONNX, where they are no operator of their own.
class ActivationNodes {
 public:
  ActivationNodes(OnnxGraph& graph, const std::string& x) : graph_(graph), x_(x) {}

  std::string relu6() const {
    return graph_.add("Clip", {x_, number("zero", 0), number("six", 6)});
  }
  std::string silu() const { return graph_.add("Mul", {x_, graph_.add("Sigmoid", {x_})}); }
  // 0.5 x (1 + erf(x / sqrt 2)).
  std::string gelu() const {
    const std::string scaled = graph_.add("Mul", {x_, number("sqrt_half", 0.707106781F)});
    return half_of_one_plus(graph_.add("Erf", {scaled}));
  }
  // 0.5 x (1 + tanh(scale (x + cubic x^3))).
  std::string gelu_tanh() const {
    const std::string square = graph_.add("Mul", {x_, x_});
    const std::string cubic =
        graph_.add("Mul", {graph_.add("Mul", {square, x_}), number("cubic", GeluTanh::kCubic)});
    const std::string inner = graph_.add("Mul", {graph_.add("Add", {x_, cubic}),  //
                                                 number("scale", GeluTanh::kScale)});
    return half_of_one_plus(graph_.add("Tanh", {inner}));
  }

 private:
  std::string number(const char* name, float value) const {
    return graph_.floats(name, {}, {value});
  }
  std::string half_of_one_plus(const std::string& y) const {
    const std::string sum = graph_.add("Add", {y, number("one", 1)});
    return graph_.add("Mul", {graph_.add("Mul", {x_, number("half", 0.5F)}), sum});
  }

  OnnxGraph& graph_;
  const std::string x_;
};

}  // namespace

std::string ActivationLayer::export_onnx(OnnxGraph& graph) const {
  const std::string x = graph.tensor(inputs()[0]);
  switch (activation_.kind) {
    case ActivationKind::kRelu:
      return graph.add("Relu", {x});
    case ActivationKind::kRelu6:
      return ActivationNodes(graph, x).relu6();
    case ActivationKind::kLeakyRelu:
      return graph.add("LeakyRelu", {x}, {{"alpha", activation_.slope}});
    case ActivationKind::kSigmoid:
      return graph.add("Sigmoid", {x});
    case ActivationKind::kHardsigmoid:
      return graph.add("HardSigmoid", {x}, {{"alpha", 1.0F / 6}, {"beta", 0.5F}});
    case ActivationKind::kTanh:
      return graph.add("Tanh", {x});
    case ActivationKind::kSilu:
      return ActivationNodes(graph, x).silu();
    case ActivationKind::kHardswish:
      return graph.add("HardSwish", {x});
    case ActivationKind::kGelu:
      return ActivationNodes(graph, x).gelu();
    case ActivationKind::kGeluTanh:
      return ActivationNodes(graph, x).gelu_tanh();
  }
  return Layer::export_onnx(graph);
}

PReluLayer::PReluLayer(std::string name, Value* input, Value* output, Parameter* slope)
    : Layer(std::move(name), {input}, output), slope_(slope) {}

LayerTraits PReluLayer::traits() const {
  const std::int64_t floats = output()->shape.batch() * slope_->elements;
  return {.reads_input = true,
          .saved_bytes = static_cast<std::size_t>(floats) * sizeof(float),
          .grad_in_place = true,
          .by_image = true,
          .computes_again = true};
}

Tensor PReluLayer::slope() const { return {slope_->value, Shape{1, slope_->elements}}; }

void PReluLayer::forward(Backend& backend, const StepContext&) {
  backend.activations().binary_forward(BinaryKind::kPRelu, inputs()[0]->data, slope(),
                                       output()->data);
}

// The slopes' gradient first: the input's gradient may overwrite the output's.
void PReluLayer::backward(Backend& backend, const StepContext& context,
                          std::span<const GradTarget> grads) {
  const Tensor &x = inputs()[0]->data, &grad_y = output()->grad;
  const Tensor by_sample(by_sample_, Shape{x.shape.batch(), slope_->elements});
  backend.activations().binary_backward_right(BinaryKind::kPRelu, x, grad_y, by_sample, false);
  add_parameter_gradient(backend, context, by_sample, *slope_);
  if (!grads[0].tensor) return;
  backend.activations().binary_backward_left(BinaryKind::kPRelu, x, slope(), grad_y,
                                             grads[0].tensor, grads[0].accumulate);
}

std::string PReluLayer::export_onnx(OnnxGraph& graph) const {
  OnnxInts extents(static_cast<std::size_t>(inputs()[0]->shape.rank()) - 1, 1);
  extents.front() = slope_->elements;  // [C, 1, 1]
  return graph.add("PRelu", {graph.tensor(inputs()[0]), graph.parameter(*slope_, extents)});
}

SoftmaxLayer::SoftmaxLayer(std::string name, Value* input, Value* output)
    : Layer(std::move(name), {input}, output) {}

void SoftmaxLayer::forward(Backend& backend, const StepContext&) {
  backend.activations().softmax_forward(inputs()[0]->data, output()->data);
}

void SoftmaxLayer::backward(Backend& backend, const StepContext&,
                            std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  backend.activations().softmax_backward(output()->data, output()->grad, grads[0].tensor,
                                         grads[0].accumulate);
}

std::string SoftmaxLayer::export_onnx(OnnxGraph& graph) const {
  return graph.add("Softmax", {graph.tensor(inputs()[0])}, {{"axis", 1}});
}

}  // namespace lockstep
