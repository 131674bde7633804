#include <algorithm>

#include "backend/formulas.h"
#include "lockstep/nn/onnx.h"
#include "nn/layers/layers.h"
#include "nn/receptive_field.h"

namespace lockstep {

MaxPoolLayer::MaxPoolLayer(std::string name, Value* input, Value* output,
                           const PoolGeometry& geometry)
    : Layer(std::move(name), {input}, output), geometry_(geometry) {}

LayerTraits MaxPoolLayer::traits() const {
  return {.saved_bytes = static_cast<std::size_t>(output()->shape.elements()),
          .by_image = true,
          .computes_again = true};
}

Tensor MaxPoolLayer::argmax() const { return Tensor(argmax_, output()->data.shape, DType::kUInt8); }

LayerWork MaxPoolLayer::forward_work() const {
  LayerWork work = Layer::forward_work();
  work.bytes += element_bytes(argmax());
  return work;
}

LayerWork MaxPoolLayer::backward_work(std::span<const GradTarget> grads) const {
  LayerWork work = Layer::backward_work(grads);
  work.bytes += element_bytes(argmax());
  return work;
}

void MaxPoolLayer::forward(Backend& backend, const StepContext&) {
  backend.pooling().max_pool_forward(geometry_, inputs()[0]->data, output()->data, argmax());
}

void MaxPoolLayer::backward(Backend& backend, const StepContext&,
                            std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  backend.pooling().max_pool_backward(geometry_, argmax(), output()->grad, grads[0].tensor,
                                      grads[0].accumulate);
}

AvgPoolLayer::AvgPoolLayer(std::string name, Value* input, Value* output,
                           const PoolGeometry& geometry)
    : Layer(std::move(name), {input}, output), geometry_(geometry) {}

void AvgPoolLayer::forward(Backend& backend, const StepContext&) {
  backend.pooling().avg_pool_forward(geometry_, inputs()[0]->data, output()->data);
}

void AvgPoolLayer::backward(Backend& backend, const StepContext&,
                            std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  backend.pooling().avg_pool_backward(geometry_, output()->grad, grads[0].tensor,
                                      grads[0].accumulate);
}

AdaptiveAvgPoolLayer::AdaptiveAvgPoolLayer(std::string name, Value* input, Value* output)
    : Layer(std::move(name), {input}, output) {}

void AdaptiveAvgPoolLayer::forward(Backend& backend, const StepContext&) {
  backend.pooling().adaptive_avg_pool_forward(inputs()[0]->data, output()->data);
}

void AdaptiveAvgPoolLayer::backward(Backend& backend, const StepContext&,
                                    std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  backend.pooling().adaptive_avg_pool_backward(output()->grad, grads[0].tensor,
                                               grads[0].accumulate);
}

namespace {

Positions read_by(const PoolGeometry& g, Positions output, int axis) {
  return axis == 1 ? kernel_reads(output, {g.kernel_h, g.stride_h, g.padding_h})
                   : kernel_reads(output, {g.kernel_w, g.stride_w, g.padding_w});
}

std::vector<OnnxAttribute> window_of(const PoolGeometry& g) {
  return {{"kernel_shape", OnnxInts{g.kernel_h, g.kernel_w}},
          {"strides", OnnxInts{g.stride_h, g.stride_w}},
          {"pads", OnnxInts{g.padding_h, g.padding_w, g.padding_h, g.padding_w}}};
}

// How much of each of `size` positions is in each bin, [bins, size], for a fixed size.
std::string fixed_bins(OnnxGraph& graph, const char* axis, std::int64_t size, std::int64_t bins) {
  std::vector<float> shares(static_cast<std::size_t>(bins * size));
  for (std::int64_t bin = 0; bin < bins; ++bin) {
    const auto range = adaptive_bin(bin, size, bins, bins);
    const auto count = static_cast<float>(range.end - range.begin);
    std::fill(shares.begin() + bin * size + range.begin, shares.begin() + bin * size + range.end,
              1 / count);
  }
  return graph.floats(lockstep::concat("bins_of_", axis), {bins, size}, shares);
}

// The same computed of the tensor's extent along `axis`: ONNX has no adaptive pooling. Bin b is the
// positions from floor(b * size / bins) to ceil((b + 1) * size / bins).
std::string bins_of(OnnxGraph& graph, const std::string& tensor, std::int64_t axis,
                    std::int64_t bins) {
  OnnxInts lower, upper;  // b and b + 1
  for (std::int64_t b = 0; b < bins; ++b) lower.push_back(b), upper.push_back(b + 1);
  const auto number = [&](std::int64_t value) {
    return graph.ints(lockstep::concat("number_", value), {}, {value});
  };
  const std::string count = number(bins);
  const std::string extent = graph.add("Shape", {tensor}, {{"start", axis}, {"end", axis + 1}});
  const std::string size = graph.add("Squeeze", {extent});
  const auto scaled = [&](const char* name, const OnnxInts& values) {
    return graph.add("Mul",
                     {graph.ints(lockstep::concat(name, "_of_", bins), {bins, 1}, values), size});
  };
  const std::string begin = graph.add("Div", {scaled("lower", lower), count});
  const std::string rounded_up = graph.add("Add", {scaled("upper", upper), number(bins - 1)});
  const std::string end = graph.add("Div", {rounded_up, count});
  const std::string position = graph.add("Range", {number(0), size, number(1)});
  const std::string inside = graph.add(
      "And", {graph.add("GreaterOrEqual", {position, begin}), graph.add("Less", {position, end})});
  const auto to_float = [&](const std::string& of) {
    return graph.add("Cast", {of}, {{"to", kOnnxFloat}});
  };
  return graph.add("Div", {to_float(inside), to_float(graph.add("Sub", {end, begin}))});
}

}  // namespace

std::optional<Positions> MaxPoolLayer::reads(Positions output, int axis) const {
  return read_by(geometry_, output, axis);
}

std::string MaxPoolLayer::export_onnx(OnnxGraph& graph) const {
  return graph.add("MaxPool", {graph.tensor(inputs()[0])}, window_of(geometry_));
}

std::optional<Positions> AvgPoolLayer::reads(Positions output, int axis) const {
  return read_by(geometry_, output, axis);
}

std::string AvgPoolLayer::export_onnx(OnnxGraph& graph) const {
  std::vector<OnnxAttribute> attributes = window_of(geometry_);
  attributes.push_back({"count_include_pad", 1});
  return graph.add("AveragePool", {graph.tensor(inputs()[0])}, attributes);
}

// To bins: rows of averages [bins, H] times the image times columns of averages [W, bins].
std::string AdaptiveAvgPoolLayer::export_onnx(OnnxGraph& graph) const {
  const std::string& x = graph.tensor(inputs()[0]);
  const Shape& from = inputs()[0]->shape;
  const Shape& to = output()->shape;
  if (to.rows_per_sample() == 1) return graph.add("GlobalAveragePool", {x});
  const bool fixed = graph.fixed_size();
  const std::string rows = fixed ? fixed_bins(graph, "height", from.height(), to.height())
                                 : bins_of(graph, x, 2, to.height());
  const std::string columns = fixed ? fixed_bins(graph, "width", from.width(), to.width())
                                    : bins_of(graph, x, 3, to.width());
  const std::string by_columns = graph.add("Transpose", {columns}, {{"perm", OnnxInts{1, 0}}});
  return graph.add("MatMul", {graph.add("MatMul", {rows, x}), by_columns});
}

}  // namespace lockstep
