#include <string>
#include <vector>

#include "lockstep/nn/models.h"
#include "nn/models/backbone_options.h"

namespace lockstep {
namespace {

// Two blocks: 3x3 convolution without bias, BatchNorm, ReLU.
Value* double_block(NetworkBuilder& net, Value* x, const NormLayer& norm, const std::string& name,
                    std::int64_t channels) {
  for (const char* block : {".0", ".1"}) {
    x = net.conv2d(x, name + block + ".conv",
                   {.out_channels = channels, .kernel = 3, .padding = 1});
    x = norm(net, x, name + block + ".bn", {.relu = true});
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

Outputs declare(const UnetOptions& options, NetworkBuilder& net, Value* x, const NormLayer& norm) {
  check_options(options, x->shape);
  std::vector<Value*> skips;  // [stage]
  for (std::int64_t k = 0; k < options.depth; ++k) {
    if (k > 0) x = net.max_pool2d(x, PoolGeometry{});
    x = double_block(net, x, norm, concat("encoder.", k), options.width << k);
    skips.push_back(x);
  }
  for (std::int64_t j = 0; j + 1 < options.depth; ++j) {
    const std::int64_t stage = options.depth - 2 - j;
    Value* skip = skips[static_cast<std::size_t>(stage)];
    x = net.upsample_bilinear(x, skip, false);
    x = net.concat({skip, x});
    x = double_block(net, x, norm, concat("decoder.", j), options.width << stage);
  }
  x = net.conv2d(x, "head", {.out_channels = options.num_classes, .bias = true});
  return {{"out", x}};
}

}  // namespace

std::int64_t unet_size_divisor(const UnetOptions& options) {
  if (options.depth < 1 || options.depth > 16) {
    throw ConfigError(concat("unet: expected 1 <= depth <= 16, got ", options.depth));
  }
  return std::int64_t{1} << (options.depth - 1);
}

Model unet(const UnetOptions& options) {
  return [options](NetworkBuilder& net, Value* input, const NormLayer& norm) {
    return declare(options, net, input, norm);
  };
}

Architecture make_unet(const ModelOptions& options) {
  check_no_backbone_options(options);
  check_no_resnet_options(options);
  const UnetOptions own{options.width, options.depth, options.num_classes};
  return {unet(own),
          unet_size_divisor(own),
          concat("U-Net of width ", own.width, " and depth ", own.depth),
          {"head"}};
}

}  // namespace lockstep
