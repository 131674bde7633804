#pragma once
// A layer of your own that looks at one element at a time, on CPU devices: you write the function
// and its gradient, and the layer does the rest (strides, memory, sums over images, ONNX).
//
//   struct Mish {
//     float operator()(float x) const { ... }                       // y
//     float gradient(float x, float grad_y) const { ... }           // of x
//   };
//   Value* y = elementwise<Mish>(net, x, "block.mish");
//
// With a parameter for each channel, `name`.weight, which begins at kInitial:
//
//   struct Slope {
//     static constexpr float kInitial = 0.25F;
//     float operator()(float x, float slope) const { return x > 0 ? x : slope * x; }
//     float gradient(float x, float slope, float grad_y) const {
//       return x > 0 ? grad_y : slope * grad_y;
//     }
//     float parameter_gradient(float x, float, float grad_y) const {
//       return x > 0 ? 0 : x * grad_y;
//     }
//   };
//
// A function that has `std::string export_onnx(OnnxGraph&, const std::string& x) const`, with the
// parameter's name as a third argument where there is one, says by it what it is in ONNX.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/nn/network.h"
#include "lockstep/nn/onnx.h"

namespace lockstep {

/// y = f(x), or y = f(x, parameter of the channel), on the replica's thread.
template <typename Function>
class ElementwiseLayer : public Layer {
 public:
  static constexpr bool kHasParameter = requires { Function::kInitial; };

  /// `parameter`: [C]; null where the function takes none.
  ElementwiseLayer(std::string name, Value* input, Value* output, Parameter* parameter = nullptr,
                   Function function = {})
      : Layer(std::move(name), {input}, output),
        parameter_(parameter),
        function_(std::move(function)) {}

  std::vector<const Parameter*> parameters() const override {
    if (parameter_ == nullptr) return {};
    return {parameter_};
  }
  LayerTraits traits() const override {
    const std::int64_t sums = kHasParameter ? output()->shape.batch() * channels() : 0;
    return {.reads_input = true,
            .saved_bytes = static_cast<std::size_t>(sums) * sizeof(float),
            .grad_in_place = true,
            .by_image = true,
            .computes_again = true};
  }
  void set_saved(void* memory) override { by_sample_ = static_cast<float*>(memory); }
  /// Throws Error on a GPU, because the function is the host's, and of activations in bf16.
  void prepare(Backend& backend, bool) override {
    LOCKSTEP_CHECK(backend.device().kind == DeviceKind::kCpu, name(),
                   ": an ElementwiseLayer computes on host memory, and cannot on ",
                   to_string(backend.device()), "; use a layer whose `forward` starts a kernel");
    const DType dtype = inputs()[0]->data.dtype;
    LOCKSTEP_CHECK(dtype == DType::kFloat32, name(), ": an ElementwiseLayer takes activations in ",
                   "fp32, got ", to_string(dtype), "; train with precision = fp32");
  }
  void forward(Backend&, const StepContext&) override {
    const Tensor &x = inputs()[0]->data, &y = output()->data;
    for (std::int64_t row = 0; row < x.shape.rows(); ++row) {
      const float* from = row_of(x, row);
      float* to = row_of(y, row);
      for (std::int64_t c = 0; c < channels(); ++c) to[c] = value(from[c], c);
    }
  }
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override {
    if constexpr (kHasParameter) backward_parameter(backend, context);
    if (grads[0].tensor) backward_input(grads[0]);
  }
  std::string export_onnx(OnnxGraph& graph) const override {
    const std::string x = graph.tensor(inputs()[0]);
    if constexpr (requires { function_.export_onnx(graph, x, x); }) {
      OnnxInts extents(static_cast<std::size_t>(inputs()[0]->shape.rank()) - 1, 1);
      extents.front() = channels();  // [C, 1, 1]
      return function_.export_onnx(graph, x, graph.parameter(*parameter_, extents));
    } else if constexpr (requires { function_.export_onnx(graph, x); }) {
      return function_.export_onnx(graph, x);
    } else {
      return Layer::export_onnx(graph);
    }
  }

 private:
  static float* row_of(const Tensor& tensor, std::int64_t row) {
    return tensor.floats() + row * tensor.row_stride;
  }
  std::int64_t channels() const { return output()->shape.channels(); }

  float value(float x, std::int64_t c) const {
    if constexpr (kHasParameter) {
      return function_(x, parameter_->value[c]);
    } else {
      return function_(x);
    }
  }
  float gradient(float x, std::int64_t c, float grad_y) const {
    if constexpr (kHasParameter) {
      return function_.gradient(x, parameter_->value[c], grad_y);
    } else {
      return function_.gradient(x, grad_y);
    }
  }
  void backward_input(const GradTarget& target) const {
    const Tensor &x = inputs()[0]->data, &grad_y = output()->grad;
    for (std::int64_t row = 0; row < x.shape.rows(); ++row) {
      const float *from = row_of(x, row), *grad = row_of(grad_y, row);
      float* to = row_of(target.tensor, row);
      for (std::int64_t c = 0; c < channels(); ++c) {
        const float own = gradient(from[c], c, grad[c]);
        to[c] = target.accumulate ? to[c] + own : own;
      }
    }
  }
  // Before the input's gradient, which may overwrite the output's. Sums are in double, by sample.
  void backward_parameter(Backend& backend, const StepContext& context) const {
    const std::int64_t batch = inputs()[0]->data.shape.batch();
    for (std::int64_t sample = 0; sample < batch; ++sample) {
      for (std::int64_t c = 0; c < channels(); c += kBlock) {
        sum_sample(sample, c, std::min(kBlock, channels() - c));
      }
    }
    add_parameter_gradient(backend, context, Tensor(by_sample_, Shape{batch, channels()}),
                           *parameter_);
  }
  void sum_sample(std::int64_t sample, std::int64_t first, std::int64_t count) const {
    const Tensor &x = inputs()[0]->data, &grad_y = output()->grad;
    const std::int64_t rows = x.shape.rows_per_sample();
    double sums[kBlock] = {};
    for (std::int64_t row = sample * rows; row < (sample + 1) * rows; ++row) {
      const float *from = row_of(x, row) + first, *grad = row_of(grad_y, row) + first;
      const float* parameter = parameter_->value + first;
      for (std::int64_t c = 0; c < count; ++c) {
        sums[c] += function_.parameter_gradient(from[c], parameter[c], grad[c]);
      }
    }
    float* to = by_sample_ + sample * channels() + first;
    for (std::int64_t c = 0; c < count; ++c) to[c] = static_cast<float>(sums[c]);
  }

  static constexpr std::int64_t kBlock = 64;  // channels whose sums stay in a cache

  Parameter* parameter_;
  Function function_;
  float* by_sample_ = nullptr;  // [batch, C], what each sample adds to the parameter's gradient
};

/// Declares a call of such a layer and, where it has one, its parameter.
template <typename Function>
Value* elementwise(NetworkBuilder& net, Value* x, const std::string& name, Function function = {}) {
  Parameter* parameter = nullptr;
  if constexpr (requires { Function::kInitial; }) {
    parameter = &net.parameter(name + ".weight", {x->shape.channels()}, ParameterKind::kWeight,
                               Initial::constant(Function::kInitial));
  }
  return net.append(std::make_unique<ElementwiseLayer<Function>>(name, x, net.value(name, x->shape),
                                                                 parameter, std::move(function)));
}

}  // namespace lockstep
