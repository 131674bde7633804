#include <string>
#include <vector>

#include "lockstep/nn/models.h"
#include "nn/models/backbone_options.h"

namespace lockstep {
namespace {

/// Logits of features, by layers whose names begin with `name`.
using Head = Value* (*)(NetworkBuilder& net, Value* features, const NormLayer& norm,
                        const SegmentationOptions& options, const std::string& name);

Value* conv_norm_relu(NetworkBuilder& net, Value* x, const NormLayer& norm, const std::string& conv,
                      const std::string& bn, const Conv2dOptions& options) {
  return norm(net, net.conv2d(x, conv, options), bn, {.relu = true});
}

Value* dropout(NetworkBuilder& net, Value* x, float p) { return p > 0 ? net.dropout(x, p) : x; }

/// "name.0" to "name.4", places in a torch.nn.Sequential: 3x3 convolution, BatchNorm, ReLU, dropout
/// and the 1x1 convolution to classes.
Value* simple_head(NetworkBuilder& net, Value* x, const NormLayer& norm, const std::string& name,
                   std::int64_t channels, float p, std::int64_t classes) {
  x = conv_norm_relu(net, x, norm, name + ".0", name + ".1",
                     {.out_channels = channels, .kernel = 3, .padding = 1});
  return net.conv2d(dropout(net, x, p), name + ".4", {.out_channels = classes, .bias = true});
}

// Of the fully convolutional network, and the auxiliary one of all three.
Value* fcn_head(NetworkBuilder& net, Value* x, const NormLayer& norm,
                const SegmentationOptions& options, const std::string& name) {
  return simple_head(net, x, norm, name, x->shape.channels() / 4, options.dropout.value_or(0.1F),
                     options.num_classes);
}

// Atrous spatial pyramid pooling.
Value* pyramid_of_rates(NetworkBuilder& net, Value* x, const NormLayer& norm,
                        const SegmentationOptions& options, const std::string& name) {
  constexpr std::int64_t kChannels = 256;
  const std::string convs = name + ".convs.";
  std::vector<Value*> branches{
      conv_norm_relu(net, x, norm, convs + "0.0", convs + "0.1", {.out_channels = kChannels})};
  for (std::int64_t i = 1; i <= 3; ++i) {
    const std::int64_t rate = i * 96 / options.output_stride;
    const std::string branch = convs + std::to_string(i);
    branches.push_back(conv_norm_relu(
        net, x, norm, branch + ".0", branch + ".1",
        {.out_channels = kChannels, .kernel = 3, .padding = rate, .dilation = rate}));
  }
  Value* image = net.adaptive_avg_pool2d(x, 1, 1);
  image =
      conv_norm_relu(net, image, norm, convs + "4.1", convs + "4.2", {.out_channels = kChannels});
  branches.push_back(net.upsample_bilinear(image, x, false));
  x = conv_norm_relu(net, net.concat(branches), norm, name + ".project.0", name + ".project.1",
                     {.out_channels = kChannels});
  return dropout(net, x, options.dropout.value_or(0.5F));
}

Value* deeplabv3_head(NetworkBuilder& net, Value* x, const NormLayer& norm,
                      const SegmentationOptions& options, const std::string& name) {
  x = pyramid_of_rates(net, x, norm, options, name + ".0");
  x = conv_norm_relu(net, x, norm, name + ".1", name + ".2",
                     {.out_channels = 256, .kernel = 3, .padding = 1});
  return net.conv2d(x, name + ".4", {.out_channels = options.num_classes, .bias = true});
}

// `name` is that of what follows the pyramid, whose own does not depend on it.
Value* pspnet_head(NetworkBuilder& net, Value* x, const NormLayer& norm,
                   const SegmentationOptions& options, const std::string& name) {
  std::vector<Value*> levels{x};
  for (const std::int64_t bins : {1, 2, 3, 6}) {
    const std::string level = lockstep::concat("ppm.features.", levels.size() - 1, ".");
    Value* y = net.adaptive_avg_pool2d(x, bins, bins);
    y = conv_norm_relu(net, y, norm, level + "1", level + "2",
                       {.out_channels = x->shape.channels() / 4});
    levels.push_back(net.upsample_bilinear(y, x, true));
  }
  return simple_head(net, net.concat(levels), norm, name, 512, options.dropout.value_or(0.1F),
                     options.num_classes);
}

/// What the three networks differ in.
struct Form {
  const char* backbone = "";  // what its names begin with
  Head head = nullptr;
  const char *name = "", *aux_name = "";  // of the heads
  bool align_corners = false;
};

Model segmentation(const Form& form, const SegmentationOptions& options) {
  const ResNetOptions backbone = with_output_stride(options.backbone, options.output_stride);
  return [=](NetworkBuilder& net, Value* x, const NormLayer& norm) {
    const NormLayer backbone_norm = options.frozen_backbone ? FrozenBatchNorm(norm.options) : norm;
    const auto features = resnet_features(net, x, backbone_norm, backbone, form.backbone);
    const auto logits = [&](Head head, Value* of, const char* name) {
      return net.upsample_bilinear(head(net, of, norm, options, name), x, form.align_corners);
    };
    Outputs outputs{{"out", logits(form.head, features[3], form.name)}};
    if (options.aux_head) outputs.push_back({"aux", logits(fcn_head, features[2], form.aux_name)});
    return outputs;
  };
}

constexpr Form kFcn{"backbone.", fcn_head, "classifier", "aux_classifier", false};
constexpr Form kDeeplabv3{"backbone.", deeplabv3_head, "classifier", "aux_classifier", false};
constexpr Form kPspnet{"", pspnet_head, "cls", "aux", true};

}  // namespace

Model fcn(const SegmentationOptions& options) { return segmentation(kFcn, options); }

Model deeplabv3(const SegmentationOptions& options) { return segmentation(kDeeplabv3, options); }

Model pspnet(const SegmentationOptions& options) {
  SegmentationOptions own = options;
  own.backbone.deep_stem = true;
  own.backbone.dilate_first_block = true;
  return segmentation(kPspnet, own);
}

Architecture make_segmentation(const ModelOptions& options) {
  const std::size_t dash = options.arch.find('_');
  const std::string head = options.arch.substr(0, dash);
  SegmentationOptions own{.backbone = configured_resnet(options.arch.substr(dash + 1), options),
                          .num_classes = options.num_classes,
                          .output_stride = options.output_stride,
                          .aux_head = options.aux_head,
                          .frozen_backbone = options.frozen_bn};
  if (own.backbone.small_images) {
    throw ConfigError("model.small_images is of classification networks; leave it out");
  }
  if (options.dropout) own.dropout = static_cast<float>(*options.dropout);
  const std::string description = lockstep::concat(
      options.arch, " of output stride ", own.output_stride, own.aux_head ? ", auxiliary head" : "",
      own.frozen_backbone ? ", backbone's BatchNorm frozen" : "");
  const bool is_pspnet = head == "pspnet";
  const Form& form = is_pspnet ? kPspnet : kFcn;  // DeepLabv3's names are those of FCN
  Architecture result{.model = is_pspnet       ? pspnet(own)
                               : head == "fcn" ? fcn(own)
                                               : deeplabv3(own),
                      .description = description,
                      .heads = {form.name},
                      .ignored_options = unet_options()};
  if (is_pspnet) result.heads.push_back("ppm");
  if (own.aux_head) result.heads.push_back(form.aux_name);
  return result;
}

}  // namespace lockstep
