#include "nn/layers/conv2d_layer.h"

#include "lockstep/nn/onnx.h"
#include "nn/layer_support.h"
#include "nn/norms/batch_norm_layer.h"
#include "nn/receptive_field.h"

namespace lockstep {
namespace {

// A convolution is of images; a linear layer's rows, of whatever shape, are one column of pixels.
Tensor as_image(Tensor tensor) {
  const Shape& shape = tensor.shape;
  if (tensor && shape.rank() != 4) {
    tensor.shape = Shape{shape.batch(), shape.rows_per_sample(), 1, shape.channels()};
  }
  return tensor;
}

}  // namespace

Conv2dLayer::Conv2dLayer(std::string name, Value* input, Value* output,
                         const ConvGeometry& geometry, Parameter* weight, Parameter* bias)
    : Layer(std::move(name), {input}, output), geometry_(geometry), weight_(weight), bias_(bias) {}

std::vector<const Parameter*> Conv2dLayer::parameters() const {
  if (bias_ == nullptr) return {weight_};
  return {weight_, bias_};
}

LayerWork Conv2dLayer::forward_work() const {
  return forward_work_with_weights(*this, geometry_.weight_elements(), output()->data.shape.rows());
}

LayerWork Conv2dLayer::backward_work(std::span<const GradTarget> grads) const {
  return backward_work_with_weights(*this, geometry_.weight_elements(), output()->data.shape.rows(),
                                    grads);
}

void Conv2dLayer::prepare(Backend& backend, bool training) {
  const Tensor x = as_image(inputs()[0]->data);
  backend.convolutions().prepare_conv2d(geometry_, x.shape, x.dtype, training,
                                        static_cast<bool>(inputs()[0]->grad));
}

void Conv2dLayer::list_weights(std::vector<ConvWeights>& weights) const {
  const Tensor x = as_image(inputs()[0]->data);
  weights.push_back({.geometry = geometry_,
                     .weight = weight_->value,
                     .input = x.shape,
                     .dtype = x.dtype,
                     .grad_input = static_cast<bool>(inputs()[0]->grad),
                     .grad_weight = static_cast<bool>(output()->grad)});
}

bool Conv2dLayer::can_normalize(const ConvolutionOperations& convolutions, DType dtype) const {
  const Shape& input = inputs()[0]->shape;
  return input.rank() == 4 && convolutions.normalizes_in_convolution(geometry_, input, dtype);
}

void Conv2dLayer::take_over(BatchNormLayer& batch_norm) {
  batch_norm.leave_to_convolution();
  batch_norm_ = &batch_norm;
}

void Conv2dLayer::forward(Backend& backend, const StepContext& context) {
  const float* bias = bias_ == nullptr ? nullptr : bias_->value;
  if (const auto norm = batch_norm_ ? batch_norm_->inference(context) : std::nullopt) {
    return backend.convolutions().conv2d_inference(geometry_, inputs()[0]->data, weight_->value,
                                                   bias, *norm);
  }
  backend.convolutions().conv2d_forward(geometry_, as_image(inputs()[0]->data), weight_->value,
                                        bias, as_image(output()->data));
}

void Conv2dLayer::backward(Backend& backend, const StepContext&,
                           std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  backend.convolutions().conv2d_backward_data(geometry_, as_image(output()->grad), weight_->value,
                                              as_image(grads[0].tensor));
}

void Conv2dLayer::backward_weights(Backend& backend, const StepContext& context) {
  const Tensor x = as_image(inputs()[0]->data);
  const Tensor grad_y = as_image(output()->grad);
  for_each_gradient_part(context, x.shape.batch(), [&](const GradientPart& part) {
    backend.convolutions().conv2d_backward_weights(geometry_,
                                                   x.sample_range(part.first, part.count),
                                                   grad_y.sample_range(part.first, part.count),
                                                   gradient(weight_, part), gradient(bias_, part));
  });
}

// A linear layer of rows without spatial extents is a Gemm, of others a convolution with as many
// extents of 1.
std::optional<Positions> Conv2dLayer::reads(Positions output, int axis) const {
  const ConvGeometry& g = geometry_;
  return axis == 1 ? kernel_reads(output, {g.kernel_h, g.stride_h, g.padding_h, g.dilation_h})
                   : kernel_reads(output, {g.kernel_w, g.stride_w, g.padding_w, g.dilation_w});
}

std::string Conv2dLayer::export_onnx(OnnxGraph& graph) const {
  const bool linear = weight_->shape.rank() == 2;
  const auto spatial = static_cast<std::size_t>(inputs()[0]->shape.rank()) - 2;
  OnnxInts extents;  // of the weights
  for (int axis = 0; axis < weight_->shape.rank(); ++axis) extents.push_back(weight_->shape[axis]);
  if (linear) extents.resize(2 + spatial, 1);
  std::vector<std::string> operands{graph.tensor(inputs()[0]), graph.parameter(*weight_, extents)};
  if (bias_ != nullptr) operands.push_back(graph.parameter(*bias_));
  if (spatial == 0) return graph.add("Gemm", operands, {{"transB", 1}});
  if (linear) return graph.add("Conv", operands, {{"kernel_shape", OnnxInts(spatial, 1)}});
  const ConvGeometry& g = geometry_;
  return graph.add("Conv", operands,
                   {{"kernel_shape", OnnxInts{g.kernel_h, g.kernel_w}},
                    {"strides", OnnxInts{g.stride_h, g.stride_w}},
                    {"pads", OnnxInts{g.padding_h, g.padding_w, g.padding_h, g.padding_w}},
                    {"dilations", OnnxInts{g.dilation_h, g.dilation_w}},
                    {"group", g.groups}});
}

}  // namespace lockstep
