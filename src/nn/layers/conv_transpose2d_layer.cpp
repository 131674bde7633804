#include "nn/layers/conv_transpose2d_layer.h"

#include "lockstep/nn/onnx.h"
#include "nn/layer_support.h"
#include "nn/receptive_field.h"

namespace lockstep {

ConvTranspose2dLayer::ConvTranspose2dLayer(std::string name, Value* input, Value* output,
                                           const ConvGeometry& geometry, Parameter* weight,
                                           Parameter* bias)
    : Layer(std::move(name), {input}, output), geometry_(geometry), weight_(weight), bias_(bias) {}

std::vector<const Parameter*> ConvTranspose2dLayer::parameters() const {
  if (bias_ == nullptr) return {weight_};
  return {weight_, bias_};
}

LayerTraits ConvTranspose2dLayer::traits() const {
  const std::int64_t floats = bias_ == nullptr ? 0 : output()->shape.batch() * bias_->elements;
  return {.reads_input = true,
          .saved_bytes = static_cast<std::size_t>(floats) * sizeof(float),
          .accumulates_from = 1,
          .prefers_dense = true,
          .splits_backward = true,
          .by_image = true};
}

LayerWork ConvTranspose2dLayer::forward_work() const {
  return forward_work_with_weights(*this, geometry_.weight_elements(),
                                   inputs()[0]->data.shape.rows());
}

LayerWork ConvTranspose2dLayer::backward_work(std::span<const GradTarget> grads) const {
  return backward_work_with_weights(*this, geometry_.weight_elements(),
                                    inputs()[0]->data.shape.rows(), grads);
}

// Forward is the convolution's gradient of its input, which is wanted in an evaluation, too.
void ConvTranspose2dLayer::prepare(Backend& backend, bool training) {
  const Tensor& y = output()->data;
  backend.convolutions().prepare_conv2d(geometry_, y.shape, y.dtype, training, true);
}

void ConvTranspose2dLayer::list_weights(std::vector<ConvWeights>& weights) const {
  const Tensor& y = output()->data;
  weights.push_back({.geometry = geometry_,
                     .weight = weight_->value,
                     .input = y.shape,
                     .dtype = y.dtype,
                     .grad_input = true,
                     .grad_weight = static_cast<bool>(output()->grad)});
}

void ConvTranspose2dLayer::forward(Backend& backend, const StepContext&) {
  const Tensor& y = output()->data;
  backend.convolutions().conv2d_backward_data(geometry_, inputs()[0]->data, weight_->value, y);
  if (bias_ == nullptr) return;
  const Tensor bias(bias_->value, Shape{1, bias_->elements});
  backend.activations().binary_forward(BinaryKind::kAdd, y, bias, y);
}

void ConvTranspose2dLayer::backward(Backend& backend, const StepContext&,
                                    std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  backend.convolutions().conv2d_forward(geometry_, output()->grad, weight_->value, nullptr,
                                        grads[0].tensor);
}

void ConvTranspose2dLayer::backward_weights(Backend& backend, const StepContext& context) {
  const Tensor &x = inputs()[0]->data, &grad_y = output()->grad;
  for_each_gradient_part(context, x.shape.batch(), [&](const GradientPart& part) {
    backend.convolutions().conv2d_backward_weights(
        geometry_, grad_y.sample_range(part.first, part.count),
        x.sample_range(part.first, part.count), gradient(weight_, part), nullptr);
  });
  if (bias_ != nullptr) backward_bias(backend, context);
}

void ConvTranspose2dLayer::backward_bias(Backend& backend, const StepContext& context) const {
  const Tensor& grad_y = output()->grad;
  const Tensor by_sample(bias_by_sample_, Shape{grad_y.shape.batch(), bias_->elements});
  backend.activations().binary_backward_right(BinaryKind::kAdd, grad_y, grad_y, by_sample, false);
  add_parameter_gradient(backend, context, by_sample, *bias_);
}

std::optional<Positions> ConvTranspose2dLayer::reads(Positions output, int axis) const {
  const ConvGeometry& g = geometry_;
  return axis == 1 ? kernel_writes(output, {g.kernel_h, g.stride_h, g.padding_h, g.dilation_h})
                   : kernel_writes(output, {g.kernel_w, g.stride_w, g.padding_w, g.dilation_w});
}

std::string ConvTranspose2dLayer::export_onnx(OnnxGraph& graph) const {
  std::vector<std::string> operands{graph.tensor(inputs()[0]), graph.parameter(*weight_)};
  if (bias_ != nullptr) operands.push_back(graph.parameter(*bias_));
  const ConvGeometry& g = geometry_;
  const Shape &from = inputs()[0]->shape, &to = output()->shape;
  const auto rest = [](std::int64_t size, std::int64_t output_size, std::int64_t kernel,
                       std::int64_t stride, std::int64_t padding, std::int64_t dilation) {
    return output_size - ((size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1);
  };
  const OnnxInts output_padding{
      rest(from.height(), to.height(), g.kernel_h, g.stride_h, g.padding_h, g.dilation_h),
      rest(from.width(), to.width(), g.kernel_w, g.stride_w, g.padding_w, g.dilation_w)};
  return graph.add("ConvTranspose", operands,
                   {{"kernel_shape", OnnxInts{g.kernel_h, g.kernel_w}},
                    {"strides", OnnxInts{g.stride_h, g.stride_w}},
                    {"pads", OnnxInts{g.padding_h, g.padding_w, g.padding_h, g.padding_w}},
                    {"dilations", OnnxInts{g.dilation_h, g.dilation_w}},
                    {"output_padding", output_padding},
                    {"group", g.groups}});
}

}  // namespace lockstep
