#include <map>
#include <ranges>

#include "core/words.h"
#include "lockstep/nn/models.h"
#include "nn/models/backbone_options.h"

namespace lockstep {
namespace {

constexpr std::int64_t kPublishedWidth = 64;

/// What the position of a block in the network decides.
struct BlockPlace {
  std::int64_t planes = 0;  // the width in layer1, 8 times as much in layer4
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
};

const std::map<std::string, ResNetOptions>& known_options() {
  static const std::map<std::string, ResNetOptions> options{
      {"resnet18", {.bottleneck = false, .blocks = {2, 2, 2, 2}}},
      {"resnet34", {.bottleneck = false, .blocks = {3, 4, 6, 3}}},
      {"resnet50", {.blocks = {3, 4, 6, 3}}},
      {"resnet101", {.blocks = {3, 4, 23, 3}}},
      {"resnext50_32x4d", {.blocks = {3, 4, 6, 3}, .groups = 32, .width_per_group = 4}}};
  return options;
}

std::int64_t group_width(const ResNetOptions& options, std::int64_t planes) {
  return planes * options.width_per_group / kPublishedWidth;
}

void check_options(const ResNetOptions& options) {
  const bool dilated = options.dilated[0] || options.dilated[1] || options.dilated[2];
  if (!options.bottleneck &&
      (dilated || options.groups != 1 || options.width_per_group != kPublishedWidth)) {
    throw ConfigError("resnet: dilation, groups and their width need bottleneck blocks");
  }
  if (options.width < 1 || group_width(options, options.width) < 1) {
    throw ConfigError(
        concat("model.resnet_width = ", options.width, " leaves the ", options.groups,
               " groups of a convolution no channel: expected at least ",
               (kPublishedWidth + options.width_per_group - 1) / options.width_per_group));
  }
  if (options.small_images && options.deep_stem) {
    throw ConfigError("resnet: a deep stem is not one for small images");
  }
  for (const int count : options.blocks) {
    if (count < 1) throw ConfigError("resnet: every layer needs a block");
  }
}

std::int64_t expansion(const ResNetOptions& options) { return options.bottleneck ? 4 : 1; }

Value* conv3x3(NetworkBuilder& net, Value* x, const std::string& name, std::int64_t channels,
               const BlockPlace& place, std::int64_t groups = 1) {
  return net.conv2d(x, name,
                    {.out_channels = channels,
                     .kernel = 3,
                     .stride = place.stride,
                     .padding = place.dilation,
                     .dilation = place.dilation,
                     .groups = groups});
}

// What is added to a block's output: its input, projected where sizes differ.
Value* shortcut(NetworkBuilder& net, Value* x, const NormLayer& norm, const std::string& name,
                std::int64_t channels, std::int64_t stride) {
  if (stride == 1 && x->shape.channels() == channels) return x;
  Value* y = net.conv2d(x, name + "downsample.0", {.out_channels = channels, .stride = stride});
  return norm(net, y, name + "downsample.1");
}

Value* basic_block(NetworkBuilder& net, Value* x, const NormLayer& norm, const std::string& name,
                   const BlockPlace& place) {
  const BlockPlace second{.planes = place.planes};
  Value* y = conv3x3(net, x, name + "conv1", place.planes, place);
  y = norm(net, y, name + "bn1", {.relu = true});
  y = conv3x3(net, y, name + "conv2", place.planes, second);
  Value* residual = shortcut(net, x, norm, name, place.planes, place.stride);
  return norm(net, y, name + "bn2", {.relu = true, .residual = residual});
}

Value* bottleneck(NetworkBuilder& net, Value* x, const NormLayer& norm, const std::string& name,
                  const ResNetOptions& options, const BlockPlace& place) {
  const std::int64_t width = group_width(options, place.planes) * options.groups;
  const std::int64_t channels = place.planes * expansion(options);
  Value* y = net.conv2d(x, name + "conv1", {.out_channels = width});
  y = norm(net, y, name + "bn1", {.relu = true});
  y = conv3x3(net, y, name + "conv2", width, place, options.groups);
  y = norm(net, y, name + "bn2", {.relu = true});
  y = net.conv2d(y, name + "conv3", {.out_channels = channels});
  Value* residual = shortcut(net, x, norm, name, channels, place.stride);
  return norm(net, y, name + "bn3", {.relu = true, .residual = residual});
}

Value* simple_stem(NetworkBuilder& net, Value* x, const NormLayer& norm,
                   const ResNetOptions& options, const std::string& prefix) {
  const std::int64_t kernel = options.small_images ? 3 : 7;
  x = net.conv2d(x, prefix + "conv1",
                 {.out_channels = options.width,
                  .kernel = kernel,
                  .stride = options.small_images ? 1 : 2,
                  .padding = kernel / 2});
  return norm(net, x, prefix + "bn1", {.relu = true});
}

// The names are places in a torch.nn.Sequential with the ReLUs between them.
Value* deep_stem(NetworkBuilder& net, Value* x, const NormLayer& norm, const ResNetOptions& options,
                 const std::string& prefix) {
  const std::string name = prefix + "layer0.";
  const auto block = [&](int index, std::int64_t channels, std::int64_t stride) {
    x = net.conv2d(x, name + std::to_string(index),
                   {.out_channels = channels, .kernel = 3, .stride = stride, .padding = 1});
    x = norm(net, x, name + std::to_string(index + 1), {.relu = true});
  };
  block(0, options.width, 2);
  block(3, options.width, 1);
  block(6, 2 * options.width, 1);
  return x;
}

std::string describe_stem(const ResNetOptions& options) {
  std::string text;
  if (options.width != kPublishedWidth) text += concat(" of width ", options.width);
  if (options.small_images) text += " for small images";
  return text;
}

}  // namespace

ResNetOptions resnet_options(const std::string& name) {
  const auto found = known_options().find(name);
  if (found != known_options().end()) return found->second;
  throw ConfigError(concat("there is no ResNet '", name,
                           "'; expected one of: ", joined(known_options() | std::views::keys)));
}

ResNetOptions with_output_stride(ResNetOptions options, int output_stride) {
  if (output_stride != 8 && output_stride != 16 && output_stride != 32) {
    throw ConfigError(concat("model.output_stride: expected 8, 16 or 32, got ", output_stride));
  }
  options.dilated = {false, output_stride == 8, output_stride <= 16};
  check_options(options);
  return options;
}

std::array<Value*, 4> resnet_features(NetworkBuilder& net, Value* x, const NormLayer& norm,
                                      const ResNetOptions& options, const std::string& prefix) {
  check_options(options);
  x = options.deep_stem ? deep_stem(net, x, norm, options, prefix)
                        : simple_stem(net, x, norm, options, prefix);
  if (!options.small_images) {
    x = net.max_pool2d(x, {.kernel_h = 3,
                           .kernel_w = 3,
                           .stride_h = 2,
                           .stride_w = 2,
                           .padding_h = 1,
                           .padding_w = 1});
  }
  std::array<Value*, 4> features{};
  std::int64_t dilation = 1;
  for (std::size_t layer = 0; layer < features.size(); ++layer) {
    BlockPlace place{.planes = options.width << layer, .stride = layer == 0 ? 1 : 2};
    std::int64_t first_dilation = dilation;
    if (layer > 0 && options.dilated[layer - 1]) {
      dilation *= place.stride;
      place.stride = 1;
      if (options.dilate_first_block) first_dilation = dilation;
    }
    for (int block = 0; block < options.blocks[layer]; ++block) {
      const std::string name = lockstep::concat(prefix, "layer", layer + 1, ".", block, ".");
      place.dilation = block == 0 ? first_dilation : dilation;
      x = options.bottleneck ? bottleneck(net, x, norm, name, options, place)
                             : basic_block(net, x, norm, name, place);
      place.stride = 1;
    }
    features[layer] = x;
  }
  return features;
}

Model resnet(const ResNetOptions& options, std::int64_t num_classes) {
  return [=](NetworkBuilder& net, Value* x, const NormLayer& norm) -> Outputs {
    x = resnet_features(net, x, norm, options, "")[3];
    x = net.adaptive_avg_pool2d(x, 1, 1);
    x = net.reshape(x, {x->shape.batch(), x->shape.channels()});
    return {{"out", net.linear(x, "fc", num_classes)}};
  };
}

ResNetOptions configured_resnet(const std::string& name, const ModelOptions& options) {
  ResNetOptions own = resnet_options(name);
  own.width = options.resnet_width;
  own.small_images = options.small_images;
  return own;
}

Architecture make_resnet(const ModelOptions& options) {
  check_no_backbone_options(options);
  const ResNetOptions own = configured_resnet(options.arch, options);
  return {.model = resnet(own, options.num_classes),
          .description = options.arch + describe_stem(own),
          .heads = {"fc"},
          .task = Task::kClassification,
          .ignored_options = unet_options()};
}

}  // namespace lockstep
