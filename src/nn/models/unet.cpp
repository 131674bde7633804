#include "lockstep/nn/models/unet.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/core/rng.h"

namespace lockstep {
namespace {

// Two blocks: 3x3 convolution without bias, BatchNorm, ReLU.
Value* double_block(NetworkBuilder& net, Value* x, const std::string& name, std::int64_t channels) {
  for (const char* block : {".0", ".1"}) {
    x = net.conv2d(x, name + block + ".conv",
                   {.out_channels = channels, .kernel = 3, .padding = 1});
    x = net.batch_norm_relu(x, name + block + ".bn");
  }
  return x;
}

void check_options(const UnetOptions& options, const Shape& input) {
  if (options.width < 1 || options.depth < 1 || options.depth > 16 || options.num_classes < 1) {
    throw ConfigError(
        concat("unet: expected width >= 1, 1 <= depth <= 16 and num_classes >= 1, got ",
               options.width, ", ", options.depth, " and ", options.num_classes));
  }
  const std::int64_t divisor = unet_size_divisor(options);
  if (input.rank() != 4 || input.height() % divisor != 0 || input.width() % divisor != 0) {
    throw ConfigError(concat("unet: with depth ", options.depth,
                             " heights and widths must be multiples of ", divisor, ", got ",
                             to_string(input), "; crop, resize or choose a smaller depth"));
  }
}

std::vector<float> initial_values(const Parameter& parameter, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(parameter.elements), 0.0F);
  if (parameter.kind == ParameterKind::kNorm && parameter.name.ends_with(".weight")) {
    values.assign(values.size(), 1.0F);
  }
  if (parameter.kind == ParameterKind::kWeight) {
    const auto std = static_cast<float>(std::sqrt(2.0 / static_cast<double>(parameter.fan_in)));
    Rng rng(seed, RngPurpose::kInitialWeights,
            XXH64(parameter.name.data(), parameter.name.size(), 0));
    for (float& value : values) value = std * rng.normal();
  }
  return values;
}

}  // namespace

std::int64_t unet_size_divisor(const UnetOptions& options) {
  return std::int64_t{1} << (options.depth - 1);
}

std::unique_ptr<Network> make_unet(const UnetOptions& options, const BatchNormOptions& batch_norm,
                                   const Shape& input, const PlanOptions& plan, Backend& backend,
                                   ParameterStore& store) {
  check_options(options, input);
  NetworkBuilder net(backend, store, batch_norm);
  Value* x = net.input(input);
  std::vector<Value*> skips;  // [stage]
  for (std::int64_t k = 0; k < options.depth; ++k) {
    if (k > 0) x = net.max_pool2d(x, PoolGeometry{});
    x = double_block(net, x, concat("encoder.", k), options.width << k);
    skips.push_back(x);
  }
  for (std::int64_t j = 0; j + 1 < options.depth; ++j) {
    const std::int64_t stage = options.depth - 2 - j;
    Value* skip = skips[static_cast<std::size_t>(stage)];
    x = net.upsample_bilinear(x, skip->shape.height(), skip->shape.width(), false);
    x = net.concat({skip, x});
    x = double_block(net, x, concat("decoder.", j), options.width << stage);
  }
  x = net.conv2d(x, "head", {.out_channels = options.num_classes, .bias = true});
  return net.build(x, plan);
}

void initialize_parameters(ParameterStore& store, Backend& backend, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(store.elements()), 0.0F);
  for (const auto& parameter : store.parameters()) {
    const std::vector<float> initial = initial_values(*parameter, seed);
    std::copy(initial.begin(), initial.end(), values.begin() + parameter->offset);
  }
  backend.upload(Tensor(store.values(), Shape{1, store.elements()}), values.data());
  backend.synchronize();  // the host copy ends here
}

}  // namespace lockstep
