#include <algorithm>

#include "lockstep/nn/layers/concat_layer.h"
#include "lockstep/nn/layers/conv2d_layer.h"
#include "lockstep/nn/layers/pointwise_layers.h"
#include "lockstep/nn/layers/pool_layers.h"
#include "lockstep/nn/layers/upsample_layer.h"
#include "nn/network_impl.h"

namespace lockstep {
namespace {

// A geometry's own errors do not know which layer asked.
template <typename Function>
auto naming(const std::string& layer, const Function& function) {
  try {
    return function();
  } catch (const Error& error) {
    throw Error(layer + ": " + error.what());
  }
}

void check_image(const std::string& layer, const Value& x) {
  LOCKSTEP_CHECK(x.shape.rank() == 4, layer, ": expected an input of shape [N, H, W, C], got ",
                 to_string(x.shape));
}

// PoolGeometry::check is for max-pooling, whose winners must fit a byte; an average may be global.
void check_average(const PoolGeometry& g) {
  LOCKSTEP_CHECK(g.kernel_h > 0 && g.kernel_w > 0 && g.stride_h > 0 && g.stride_w > 0,
                 "the window and its stride must be positive, got ", g.kernel_h, "x", g.kernel_w,
                 " and ", g.stride_h, "x", g.stride_w);
  LOCKSTEP_CHECK(g.padding_h >= 0 && g.padding_w >= 0 && 2 * g.padding_h <= g.kernel_h &&
                     2 * g.padding_w <= g.kernel_w,
                 "padding must be between 0 and half the window, got ", g.padding_h, "x",
                 g.padding_w, " for a window of ", g.kernel_h, "x", g.kernel_w);
}

}  // namespace

NetworkBuilder::NetworkBuilder(Backend& backend, ParameterStore& store,
                               const BatchNormOptions& batch_norm)
    : impl_(std::make_unique<Network::Impl>(backend, store, batch_norm)) {}

NetworkBuilder::~NetworkBuilder() = default;

Value* NetworkBuilder::new_value(const std::string& name, const Shape& shape) {
  impl_->values.push_back(std::make_unique<Value>(Value{name, shape, {}, {}}));
  return impl_->values.back().get();
}

std::string NetworkBuilder::numbered(const char* kind) const {
  return std::string(kind) + "_" + std::to_string(impl_->layers.size());
}

Value* NetworkBuilder::append(std::unique_ptr<Layer> layer) {
  impl_->layers.push_back(std::move(layer));
  return impl_->layers.back()->output();
}

Value* NetworkBuilder::input(const Shape& shape) {
  LOCKSTEP_CHECK(impl_->input == nullptr, "a network has one input");
  LOCKSTEP_CHECK(shape.rank() >= 2 && shape.elements() > 0,
                 "the input needs a batch, channels and no empty extent, got ", to_string(shape));
  return impl_->input = new_value("input", shape);
}

Value* NetworkBuilder::conv2d(Value* x, const std::string& name, const Conv2dOptions& options) {
  ConvGeometry geometry;
  geometry.in_channels = x->shape.channels();
  geometry.out_channels = options.out_channels;
  geometry.kernel_h = geometry.kernel_w = options.kernel;
  geometry.stride_h = geometry.stride_w = options.stride;
  geometry.padding_h = geometry.padding_w = options.padding;
  geometry.dilation_h = geometry.dilation_w = options.dilation;
  geometry.groups = options.groups;
  return conv2d(x, name, geometry, options.bias);
}

Value* NetworkBuilder::conv2d(Value* x, const std::string& name, const ConvGeometry& geometry,
                              bool bias) {
  const Shape shape = naming(name, [&] {
    geometry.check();
    return geometry.output_shape(x->shape);
  });
  const std::int64_t fan_in =
      geometry.in_channels / geometry.groups * geometry.kernel_h * geometry.kernel_w;
  Parameter& weight = impl_->store.parameter(name + ".weight", geometry.weight_shape(),
                                             ParameterKind::kWeight, fan_in);
  Parameter* offset = nullptr;
  if (bias) {
    offset = &impl_->store.parameter(name + ".bias", {geometry.out_channels}, ParameterKind::kBias);
  }
  return append(
      std::make_unique<Conv2dLayer>(name, x, new_value(name, shape), geometry, &weight, offset));
}

Value* NetworkBuilder::batch_norm(Value* x, const std::string& name) {
  return batch_norm(x, name, BatchNormCall{});
}

Value* NetworkBuilder::batch_norm_relu(Value* x, const std::string& name) {
  return batch_norm(x, name, BatchNormCall{.relu = true});
}

Value* NetworkBuilder::batch_norm_add_relu(Value* x, Value* residual, const std::string& name) {
  return batch_norm(x, name, BatchNormCall{.relu = true, .residual = residual});
}

Value* NetworkBuilder::batch_norm(Value* x, const std::string& name, const BatchNormCall& call) {
  LOCKSTEP_CHECK(call.residual == nullptr || call.residual->shape == x->shape, name,
                 ": x has shape ", to_string(x->shape), ", the residual ",
                 to_string(call.residual == nullptr ? Shape{} : call.residual->shape));
  BatchNormLayer::Config config;
  config.options = call.options.value_or(impl_->batch_norm_options);
  config.relu = call.relu;
  config.frozen = call.frozen;
  config.call_index = static_cast<int>(impl_->batch_norms.size());
  const Shape channels{x->shape.channels()};
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;
  if (config.options.affine) {
    weight = &impl_->store.parameter(name + ".weight", channels, ParameterKind::kNorm);
    bias = &impl_->store.parameter(name + ".bias", channels, ParameterKind::kNorm);
  }
  BatchNormState* state = nullptr;
  if (config.options.track_running_stats) state = &impl_->store.batch_norm(name, channels[0]);
  std::vector<Value*> inputs{x};
  if (call.residual != nullptr) inputs.push_back(call.residual);
  auto layer = std::make_unique<BatchNormLayer>(name, std::move(inputs), new_value(name, x->shape),
                                                config, weight, bias, state);
  impl_->batch_norms.push_back(layer.get());
  return append(std::move(layer));
}

Value* NetworkBuilder::relu(Value* x) {
  const std::string name = numbered("relu");
  return append(std::make_unique<ReluLayer>(name, x, new_value(name, x->shape)));
}

Value* NetworkBuilder::max_pool2d(Value* x, const PoolGeometry& geometry) {
  const std::string name = numbered("max_pool");
  const Shape shape = naming(name, [&] {
    geometry.check();
    return geometry.output_shape(x->shape);
  });
  return append(std::make_unique<MaxPoolLayer>(name, x, new_value(name, shape), geometry));
}

Value* NetworkBuilder::avg_pool2d(Value* x, const PoolGeometry& geometry) {
  const std::string name = numbered("avg_pool");
  const Shape shape = naming(name, [&] {
    check_average(geometry);
    return geometry.output_shape(x->shape);
  });
  return append(std::make_unique<AvgPoolLayer>(name, x, new_value(name, shape), geometry));
}

Value* NetworkBuilder::global_avg_pool(Value* x) {
  check_image("global_avg_pool", *x);
  PoolGeometry geometry;
  geometry.kernel_h = geometry.stride_h = x->shape.height();
  geometry.kernel_w = geometry.stride_w = x->shape.width();
  return avg_pool2d(x, geometry);
}

Value* NetworkBuilder::upsample_bilinear(Value* x, std::int64_t height, std::int64_t width,
                                         bool align_corners) {
  const std::string name = numbered("upsample");
  check_image(name, *x);
  LOCKSTEP_CHECK(height > 0 && width > 0, name, ": the size must be positive, got ", height, "x",
                 width);
  const Shape shape{x->shape.batch(), height, width, x->shape.channels()};
  return append(std::make_unique<UpsampleLayer>(name, x, new_value(name, shape), align_corners));
}

Value* NetworkBuilder::concat(const std::vector<Value*>& parts) {
  const std::string name = numbered("concat");
  LOCKSTEP_CHECK(!parts.empty(), name, ": nothing to concatenate");
  std::int64_t channels = 0;
  for (const Value* part : parts) {
    const Shape& first = parts.front()->shape;
    LOCKSTEP_CHECK(part->shape.with_channels(first.channels()) == first, name,
                   ": shapes may differ in channels only, got ", to_string(first), " and ",
                   to_string(part->shape));
    channels += part->shape.channels();
  }
  const Shape shape = parts.front()->shape.with_channels(channels);
  return append(std::make_unique<ConcatLayer>(name, parts, new_value(name, shape)));
}

Value* NetworkBuilder::add(Value* a, Value* b) {
  const std::string name = numbered("add");
  LOCKSTEP_CHECK(a->shape == b->shape, name, ": shapes differ, ", to_string(a->shape), " and ",
                 to_string(b->shape));
  return append(std::make_unique<AddLayer>(name, a, b, new_value(name, a->shape)));
}

Value* NetworkBuilder::dropout(Value* x, float p) {
  const std::string name = numbered("dropout");
  LOCKSTEP_CHECK(p >= 0.0F && p < 1.0F, name, ": the probability must be in [0, 1), got ", p);
  const std::uint64_t call = impl_->layers.size();
  return append(std::make_unique<DropoutLayer>(name, x, new_value(name, x->shape), p, call));
}

std::unique_ptr<Network> NetworkBuilder::build(Value* output, const PlanOptions& options) {
  LOCKSTEP_CHECK(impl_ != nullptr && impl_->input != nullptr && !impl_->layers.empty(),
                 "a network is built once and needs an input and at least one layer");
  LOCKSTEP_CHECK(output != impl_->input, "the input cannot be the output");
  impl_->output = output;
  if (!impl_->store.allocated()) impl_->store.allocate(impl_->backend);
  impl_->allocate(options);
  impl_->set_batch(impl_->input->shape.batch());
  return std::unique_ptr<Network>(new Network(std::move(impl_)));
}

}  // namespace lockstep
