#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_set>
#include <utility>

#include "backend/operands.h"
#include "core/number_check.h"
#include "nn/graph/network_impl.h"
#include "nn/layers/conv2d_layer.h"
#include "nn/layers/conv_transpose2d_layer.h"
#include "nn/layers/layers.h"
#include "nn/norms/make_norm.h"

namespace lockstep {
namespace {

void check_given(const std::string& layer, const Value* x) {
  LOCKSTEP_CHECK(x != nullptr, layer, ": the input is null; give a value of this builder");
}

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

Shape resized(const std::string& name, const Value& x, std::int64_t height, std::int64_t width) {
  check_image(name, x);
  LOCKSTEP_CHECK(height > 0 && width > 0, name, ": the size must be positive, got ", height, "x",
                 width);
  return {x.shape.batch(), height, width, x.shape.channels()};
}

// What a model returns is the caller's to mend, as other options are.
template <typename... Words>
void require(bool holds, const Words&... words) {
  if (!holds) throw ConfigError(lockstep::concat(words...));
}

void check_outputs(const Outputs& outputs, const Value* input,
                   const std::unordered_set<const Value*>& written) {
  require(!outputs.empty(), "a network needs at least one output; the model returns none");
  std::set<std::string> names;
  std::set<const Value*> values;
  for (const Output& output : outputs) {
    require(output.value != nullptr, "output '", output.name, "' has no value: it is null");
    require(names.insert(output.name).second, "two outputs are called '", output.name, "'");
    require(output.value != input, "output '", output.name,
            "' is the network's input; an output is what a layer writes");
    require(written.contains(output.value), "output '", output.name,
            "' is a value that no layer of this network writes");
    require(values.insert(output.value).second, "output '", output.name,
            "' is another output again");
  }
}

// How a layer's traits speak of inputs that it must have then, and of memory that must fit.
void check_traits(const Layer& layer) {
  const LayerTraits traits = layer.traits();
  const std::span<Value* const> inputs = layer.inputs();
  const bool in_place = traits.forward_in_place || traits.grad_in_place;
  if (inputs.empty()) {
    const bool speaks =
        traits.reads_input || in_place || traits.concatenates || traits.splits_backward;
    LOCKSTEP_CHECK(!speaks, layer.name(),
                   ": its traits speak of input 0, and it has no input (reads_input, "
                   "forward_in_place, grad_in_place, concatenates, splits_backward)");
    return;
  }
  const Shape &x = inputs.front()->shape, &y = layer.output()->shape;
  LOCKSTEP_CHECK(!in_place || x.elements() == y.elements(), layer.name(),
                 ": by its traits input 0 and the output share memory (forward_in_place, "
                 "grad_in_place): expected as many elements of both, got ",
                 to_string(x), " and ", to_string(y));
  if (!traits.concatenates) return;
  std::int64_t channels = 0;
  for (const Value* part : inputs) {
    channels += part->shape.channels();
    LOCKSTEP_CHECK(part->shape.with_channels(y.channels()) == y, layer.name(),
                   ": by its traits it concatenates channels: expected inputs like the output, ",
                   to_string(y), ", got ", to_string(part->shape));
  }
  LOCKSTEP_CHECK(channels == y.channels(), layer.name(),
                 ": by its traits it concatenates channels: expected ", y.channels(),
                 " of all inputs, got ", channels);
}

void check_norm_numbers(const std::string& name, BatchNormOptions options) {
  NumberCheck check{name + ": "};
  options.visit_options(check);
}

void check_norm_call(const Value& x, const std::string& name, const NormLayer& norm,
                     const NormCall& call) {
  check_norm_numbers(name, norm.options);
  const int rank = x.shape.rank();
  LOCKSTEP_CHECK(rank >= norm.least_rank && rank <= norm.most_rank, name, ": expected an input of ",
                 norm.least_rank,
                 norm.least_rank == norm.most_rank ? "" : concat(" to ", norm.most_rank),
                 " dimensions, batch first and channels last, got ", to_string(x.shape));
  LOCKSTEP_CHECK(call.num_features == 0 || call.num_features == x.shape.channels(), name,
                 ": expected an input with ", call.num_features, " channels (num_features), got ",
                 x.shape.channels(), " in ", to_string(x.shape));
  LOCKSTEP_CHECK(call.residual == nullptr || call.residual->shape == x.shape, name,
                 ": x has shape ", to_string(x.shape), ", the residual ",
                 to_string(call.residual == nullptr ? Shape{} : call.residual->shape));
}

/// Of the convolution whose gradient a transposed convolution of `channels` is.
ConvGeometry transposed_geometry(const std::string& name, std::int64_t channels,
                                 const ConvTranspose2dOptions& options) {
  ConvGeometry geometry;
  geometry.in_channels = options.out_channels;
  geometry.out_channels = channels;
  geometry.kernel_h = geometry.kernel_w = options.kernel;
  geometry.stride_h = geometry.stride_w = options.stride;
  geometry.padding_h = geometry.padding_w = options.padding;
  geometry.dilation_h = geometry.dilation_w = options.dilation;
  geometry.groups = options.groups;
  naming(name, [&] { geometry.check(); });
  LOCKSTEP_CHECK(options.output_padding >= 0 && options.output_padding < options.stride, name,
                 ": expected an output padding of at least 0 and below the stride ", options.stride,
                 ", got ", options.output_padding);
  return geometry;
}

}  // namespace

// --- what layers are declared with ---

LayerBuilder::LayerBuilder(Backend& backend, ParameterStore& store, const NormLayer& norm)
    : declared_(std::make_unique<DeclaredNetwork>(backend, store, norm)) {}

LayerBuilder::~LayerBuilder() = default;

Backend& LayerBuilder::backend() const { return declared_->backend; }

void LayerBuilder::check_open() const {
  LOCKSTEP_CHECK(declared_ != nullptr,
                 "the network is built already; its builder declares no more");
}

Value* LayerBuilder::value(const std::string& name, const Shape& shape) {
  check_open();
  LOCKSTEP_CHECK(shape.rank() > 0 && shape.elements() > 0, "value '", name,
                 "': expected a batch and other extents above 0, got ", to_string(shape));
  declared_->values.push_back(std::make_unique<Value>(Value{name, shape, {}, {}}));
  return declared_->values.back().get();
}

std::string LayerBuilder::numbered(const char* kind) const {
  check_open();
  return std::string(kind) + "_" + std::to_string(declared_->layers.size());
}

Parameter& LayerBuilder::parameter(const std::string& name, const Shape& shape, ParameterKind kind,
                                   std::int64_t fan_in) {
  check_open();
  return declared_->store.parameter(name, shape, kind, fan_in);
}

Parameter& LayerBuilder::parameter(const std::string& name, const Shape& shape, ParameterKind kind,
                                   const Initial& initial) {
  check_open();
  return declared_->store.parameter(name, shape, kind, initial);
}

// What a layer reads must be there when it runs: the order of the calls is that of the layers.
void LayerBuilder::check_input(const Layer& layer, const Value* x) const {
  check_given(layer.name(), x);
  if (declared_->written.contains(x)) return;
  LOCKSTEP_CHECK(declared_->owns(x), layer.name(),
                 ": an input is no value of this network's builder");
  LOCKSTEP_CHECK(false, layer.name(), " reads the value '", x->name,
                 "', which no layer before it writes; append the layer that does first");
}

Value* LayerBuilder::append(std::unique_ptr<Layer> layer) {
  check_open();
  LOCKSTEP_CHECK(layer != nullptr, "the layer to append is null");
  for (const Value* x : layer->inputs()) check_input(*layer, x);
  Value* const y = layer->output();
  LOCKSTEP_CHECK(y != nullptr, layer->name(), ": the output is null; NetworkBuilder::value makes ",
                 "one");
  LOCKSTEP_CHECK(declared_->owns(y), layer->name(), ": the output is no value of this network's ",
                 "builder; NetworkBuilder::value makes one");
  LOCKSTEP_CHECK(declared_->written.insert(y).second, layer->name(), " writes the value '", y->name,
                 "', which another layer writes, or which is the network's input");
  check_traits(*layer);
  declared_->layers.push_back(std::move(layer));
  return y;
}

// --- the library's layers ---

NetworkBuilder::NetworkBuilder(Backend& backend, ParameterStore& store, const NormLayer& norm)
    : LayerBuilder(backend, store, norm) {}

Value* NetworkBuilder::input(const Shape& shape) {
  check_open();
  LOCKSTEP_CHECK(declared_->input == nullptr, "a network has one input");
  LOCKSTEP_CHECK(shape.rank() >= 2 && shape.elements() > 0,
                 "the input needs a batch, channels and no empty extent, got ", to_string(shape));
  declared_->input = value("input", shape);
  declared_->written.insert(declared_->input);
  return declared_->input;
}

Value* NetworkBuilder::conv2d(Value* x, const std::string& name, const Conv2dOptions& options) {
  check_given(name, x);
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
  check_given(name, x);
  const Shape shape = naming(name, [&] { return geometry.output_shape(x->shape); });
  const std::int64_t fan_in =
      geometry.in_channels / geometry.groups * geometry.kernel_h * geometry.kernel_w;
  Parameter& weight =
      parameter(name + ".weight", geometry.weight_shape(), ParameterKind::kWeight, fan_in);
  Parameter* offset = nullptr;
  if (bias) offset = &parameter(name + ".bias", {geometry.out_channels}, ParameterKind::kBias);
  return append(
      std::make_unique<Conv2dLayer>(name, x, value(name, shape), geometry, &weight, offset));
}

Value* NetworkBuilder::conv_transpose2d(Value* x, const std::string& name,
                                        const ConvTranspose2dOptions& options) {
  check_given(name, x);
  check_image(name, *x);
  const ConvGeometry transposed = transposed_geometry(name, x->shape.channels(), options);
  const auto extent = [&](std::int64_t size) {
    return (size - 1) * options.stride - 2 * options.padding +
           options.dilation * (options.kernel - 1) + options.output_padding + 1;
  };
  const Shape& in = x->shape;
  const std::int64_t height = extent(in.height()), width = extent(in.width());
  LOCKSTEP_CHECK(height > 0 && width > 0, name, ": ", to_string(in), " would become ", height, "x",
                 width, "; use a larger window or less padding");
  Value* y = value(name, {in.batch(), height, width, options.out_channels});
  // Every output pixel is a sum over this many products: a stride leaves out the others.
  const std::int64_t products = in.channels() / options.groups * options.kernel * options.kernel /
                                (options.stride * options.stride);
  Parameter& weight = parameter(name + ".weight", transposed.weight_shape(), ParameterKind::kWeight,
                                std::max<std::int64_t>(1, products));
  Parameter* bias = nullptr;
  if (options.bias) bias = &parameter(name + ".bias", {options.out_channels}, ParameterKind::kBias);
  return append(std::make_unique<ConvTranspose2dLayer>(name, x, y, transposed, &weight, bias));
}

Value* NetworkBuilder::linear(Value* x, const std::string& name, std::int64_t out_features,
                              bool bias) {
  check_given(name, x);
  LOCKSTEP_CHECK(out_features > 0, name, ": expected at least 1 output feature, got ",
                 out_features);
  ConvGeometry geometry;
  geometry.in_channels = x->shape.channels();
  geometry.out_channels = out_features;
  geometry.kernel_h = geometry.kernel_w = 1;
  Parameter& weight = parameter(name + ".weight", {out_features, geometry.in_channels},
                                ParameterKind::kWeight, geometry.in_channels);
  Parameter* offset = nullptr;
  if (bias) offset = &parameter(name + ".bias", {out_features}, ParameterKind::kBias);
  Value* y = value(name, x->shape.with_channels(out_features));
  return append(std::make_unique<Conv2dLayer>(name, x, y, geometry, &weight, offset));
}

Value* NetworkBuilder::reshape(Value* x, const Shape& shape) {
  const std::string name = numbered("reshape");
  check_given(name, x);
  LOCKSTEP_CHECK(shape.rank() >= 2 && shape.batch() == x->shape.batch() &&
                     shape.elements() == x->shape.elements(),
                 name, ": ", to_string(x->shape), " cannot become ", to_string(shape),
                 "; the batch and the number of elements stay");
  return append(std::make_unique<ReshapeLayer>(name, x, value(name, shape)));
}

Value* NetworkBuilder::batch_norm(Value* x, const std::string& name, const NormCall& call) {
  check_open();
  return batch_norm(x, name, declared_->norm, call);
}

Value* NetworkBuilder::batch_norm_relu(Value* x, const std::string& name) {
  return batch_norm(x, name, NormCall{.relu = true});
}

Value* NetworkBuilder::batch_norm_add_relu(Value* x, Value* residual, const std::string& name) {
  return batch_norm(x, name, NormCall{.relu = true, .residual = residual});
}

Value* NetworkBuilder::batch_norm(Value* x, const std::string& name, const NormLayer& norm,
                                  const NormCall& call) {
  check_open();
  check_given(name, x);
  check_norm_call(*x, name, norm, call);
  NormLayer converted = norm;
  for (std::size_t i = declared_->norm_conversions.size(); i-- > 0;) {
    declared_->norm_conversions[i](converted, x->shape);
  }
  const NormLayer own = converted.named(name);
  const auto call_index = static_cast<int>(declared_->batch_norms.size());
  std::unique_ptr<Layer> layer =
      make_norm({name, x, value(name, x->shape), own, call, call_index}, declared_->store);
  if (auto* batch_norm = dynamic_cast<BatchNormLayer*>(layer.get())) {
    declared_->batch_norms.push_back(batch_norm);
  }
  return append(std::move(layer));
}

NetworkBuilder::NormConversion::NormConversion(NetworkBuilder& net, Convert convert) : net_(net) {
  net_.declared_->norm_conversions.push_back(std::move(convert));
}

NetworkBuilder::NormConversion::~NormConversion() { net_.declared_->norm_conversions.pop_back(); }

Value* NetworkBuilder::activation(Value* x, const Activation& function) {
  const std::string name = numbered(to_string(function.kind));
  check_given(name, x);
  LOCKSTEP_CHECK(function.slope >= 0, name, ": expected a slope of at least 0, got ",
                 function.slope);
  return append(std::make_unique<ActivationLayer>(name, x, value(name, x->shape), function));
}

Value* NetworkBuilder::prelu(Value* x, const std::string& name, bool per_channel, float initial) {
  check_given(name, x);
  const Shape slopes{per_channel ? x->shape.channels() : 1};
  Parameter& slope =
      parameter(name + ".weight", slopes, ParameterKind::kWeight, Initial::constant(initial));
  return append(std::make_unique<PReluLayer>(name, x, value(name, x->shape), &slope));
}

Value* NetworkBuilder::softmax(Value* x) {
  const std::string name = numbered("softmax");
  check_given(name, x);
  return append(std::make_unique<SoftmaxLayer>(name, x, value(name, x->shape)));
}

Value* NetworkBuilder::max_pool2d(Value* x, const PoolGeometry& geometry) {
  const std::string name = numbered("max_pool");
  check_given(name, x);
  const Shape shape = naming(name, [&] { return geometry.output_shape(x->shape); });
  return append(std::make_unique<MaxPoolLayer>(name, x, value(name, shape), geometry));
}

Value* NetworkBuilder::avg_pool2d(Value* x, const PoolGeometry& geometry) {
  const std::string name = numbered("avg_pool");
  check_given(name, x);
  const Shape shape = naming(name, [&] { return geometry.output_shape(x->shape); });
  return append(std::make_unique<AvgPoolLayer>(name, x, value(name, shape), geometry));
}

Value* NetworkBuilder::adaptive_avg_pool2d(Value* x, std::int64_t height, std::int64_t width) {
  const std::string name = numbered("adaptive_avg_pool");
  check_given(name, x);
  const Shape shape = resized(name, *x, height, width);
  return append(std::make_unique<AdaptiveAvgPoolLayer>(name, x, value(name, shape)));
}

Value* NetworkBuilder::upsample_bilinear(Value* x, std::int64_t height, std::int64_t width,
                                         bool align_corners) {
  const std::string name = numbered("upsample");
  check_given(name, x);
  Value* y = value(name, resized(name, *x, height, width));
  return append(std::make_unique<UpsampleLayer>(name, x, y, align_corners, nullptr));
}

Value* NetworkBuilder::upsample_bilinear(Value* x, const Value* like, bool align_corners) {
  const std::string name = numbered("upsample");
  check_given(name, x);
  check_given(name, like);
  check_image(name, *like);
  Value* y = value(name, resized(name, *x, like->shape.height(), like->shape.width()));
  return append(std::make_unique<UpsampleLayer>(name, x, y, align_corners, like));
}

Value* NetworkBuilder::concat(const std::vector<Value*>& parts) {
  const std::string name = numbered("concat");
  LOCKSTEP_CHECK(!parts.empty(), name, ": nothing to concatenate");
  std::int64_t channels = 0;
  for (const Value* part : parts) {
    check_given(name, part);
    const Shape& first = parts.front()->shape;
    LOCKSTEP_CHECK(part->shape.with_channels(first.channels()) == first, name,
                   ": shapes may differ in channels only, got ", to_string(first), " and ",
                   to_string(part->shape));
    channels += part->shape.channels();
  }
  const Shape shape = parts.front()->shape.with_channels(channels);
  return append(std::make_unique<ConcatLayer>(name, parts, value(name, shape)));
}

Value* NetworkBuilder::slice_channels(Value* x, std::int64_t begin, std::int64_t count) {
  const std::string name = numbered("slice");
  check_given(name, x);
  const std::int64_t channels = x->shape.channels();
  LOCKSTEP_CHECK(begin >= 0 && count > 0 && count <= channels - begin, name,
                 ": expected a range of the ", channels, " channels, got ", count, " from ", begin,
                 " on");
  Value* y = value(name, x->shape.with_channels(count));
  return append(std::make_unique<ChannelSliceLayer>(name, x, y, begin));
}

Value* NetworkBuilder::binary(BinaryKind kind, Value* a, Value* b) {
  const std::string name = numbered(to_string(kind));
  check_given(name, a);
  check_given(name, b);
  const bool commutes = kind != BinaryKind::kSubtract;
  if (commutes && a->shape.elements() < b->shape.elements()) std::swap(a, b);
  const bool fits = a->shape.rank() == b->shape.rank() && a->shape.batch() == b->shape.batch() &&
                    find_repetition(a->shape, b->shape).has_value();
  LOCKSTEP_CHECK(fits, name, ": shapes differ, ", to_string(a->shape), " and ", to_string(b->shape),
                 "; the second may have one channel, or one row for a sample");
  return append(std::make_unique<BinaryLayer>(name, a, b, value(name, a->shape), kind));
}

Value* NetworkBuilder::add(Value* a, Value* b) { return binary(BinaryKind::kAdd, a, b); }

Value* NetworkBuilder::sub(Value* a, Value* b) { return binary(BinaryKind::kSubtract, a, b); }

Value* NetworkBuilder::mul(Value* a, Value* b) { return binary(BinaryKind::kMultiply, a, b); }

Value* NetworkBuilder::all_reduce(Value* x) {
  const std::string name = numbered("all_reduce");
  check_given(name, x);
  const auto call = static_cast<int>(declared_->layers.size());
  return append(std::make_unique<AllReduceLayer>(name, x, value(name, x->shape), call));
}

Value* NetworkBuilder::dropout(Value* x, float p) {
  const std::string name = numbered("dropout");
  check_given(name, x);
  LOCKSTEP_CHECK(p >= 0.0F && p < 1.0F, name, ": the probability must be in [0, 1), got ", p);
  const std::uint64_t call = declared_->layers.size();
  return append(std::make_unique<DropoutLayer>(name, x, value(name, x->shape), p, call));
}

// --- the network ---

std::vector<const Layer*> NetworkBuilder::layers_to(const std::vector<const Value*>& wanted) const {
  const std::unordered_set<const Value*> needed =
      declared_->needed_for({wanted.begin(), wanted.end()});
  std::vector<const Layer*> layers;
  for (const auto& layer : declared_->layers) {
    if (needed.contains(layer->output())) layers.push_back(layer.get());
  }
  return layers;
}

std::unique_ptr<Network> NetworkBuilder::build(const Outputs& outputs, const PlanOptions& options) {
  check_open();
  LOCKSTEP_CHECK(declared_->input != nullptr,
                 "the network has no input; NetworkBuilder::input makes ", "it");
  check_outputs(outputs, declared_->input, declared_->written);
  declared_->outputs = outputs;
  if (!options.outputs.empty()) declared_->leave_out_all_but(options.outputs);
  if (!declared_->store.allocated()) declared_->store.allocate(declared_->backend);
  if (!options.training && options.share_memory) {
    declared_->join_convolutions_and_batch_norms(options.activations);
  }
  auto impl = std::make_unique<Network::Impl>(std::move(declared_), options);
  impl->passes.set_batch(impl->declared->input->shape.batch());
  return std::unique_ptr<Network>(new Network(std::move(impl)));
}

std::unique_ptr<Network> NetworkBuilder::build(Value* output, const PlanOptions& options) {
  return build({{"out", output}}, options);
}

}  // namespace lockstep
