#include "lockstep/nn/models/segmentation.h"

#include <string>
#include <vector>

namespace lockstep {
namespace {

using Head = Value* (*)(NetworkBuilder& net, Value* features, const NormLayer& norm,
                        const SegmentationOptions& options);

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

Value* fcn_head(NetworkBuilder& net, Value* x, const NormLayer& norm,
                const SegmentationOptions& options) {
  return simple_head(net, x, norm, "classifier", x->shape.channels() / 4,
                     options.dropout.value_or(0.1F), options.num_classes);
}

Value* fcn_aux_head(NetworkBuilder& net, Value* x, const NormLayer& norm,
                    const SegmentationOptions& options) {
  return simple_head(net, x, norm, "aux_classifier", x->shape.channels() / 4,
                     options.dropout.value_or(0.1F), options.num_classes);
}

// Atrous spatial pyramid pooling.
Value* pyramid_of_rates(NetworkBuilder& net, Value* x, const NormLayer& norm,
                        const SegmentationOptions& options) {
  constexpr std::int64_t kChannels = 256;
  const std::string name = "classifier.0.convs.";
  std::vector<Value*> branches{
      conv_norm_relu(net, x, norm, name + "0.0", name + "0.1", {.out_channels = kChannels})};
  for (std::int64_t i = 1; i <= 3; ++i) {
    const std::int64_t rate = i * 96 / options.output_stride;
    const std::string branch = name + std::to_string(i);
    branches.push_back(conv_norm_relu(
        net, x, norm, branch + ".0", branch + ".1",
        {.out_channels = kChannels, .kernel = 3, .padding = rate, .dilation = rate}));
  }
  Value* image = net.adaptive_avg_pool2d(x, 1, 1);
  image = conv_norm_relu(net, image, norm, name + "4.1", name + "4.2", {.out_channels = kChannels});
  branches.push_back(net.upsample_bilinear(image, x->shape.height(), x->shape.width(), false));
  x = conv_norm_relu(net, net.concat(branches), norm, "classifier.0.project.0",
                     "classifier.0.project.1", {.out_channels = kChannels});
  return dropout(net, x, options.dropout.value_or(0.5F));
}

Value* deeplabv3_head(NetworkBuilder& net, Value* x, const NormLayer& norm,
                      const SegmentationOptions& options) {
  x = pyramid_of_rates(net, x, norm, options);
  x = conv_norm_relu(net, x, norm, "classifier.1", "classifier.2",
                     {.out_channels = 256, .kernel = 3, .padding = 1});
  return net.conv2d(x, "classifier.4", {.out_channels = options.num_classes, .bias = true});
}

Value* pspnet_head(NetworkBuilder& net, Value* x, const NormLayer& norm,
                   const SegmentationOptions& options) {
  std::vector<Value*> levels{x};
  for (const std::int64_t bins : {1, 2, 3, 6}) {
    const std::string name = lockstep::concat("ppm.features.", levels.size() - 1, ".");
    Value* y = net.adaptive_avg_pool2d(x, bins, bins);
    y = conv_norm_relu(net, y, norm, name + "1", name + "2",
                       {.out_channels = x->shape.channels() / 4});
    levels.push_back(net.upsample_bilinear(y, x->shape.height(), x->shape.width(), true));
  }
  return simple_head(net, net.concat(levels), norm, "cls", 512, options.dropout.value_or(0.1F),
                     options.num_classes);
}

Value* pspnet_aux_head(NetworkBuilder& net, Value* x, const NormLayer& norm,
                       const SegmentationOptions& options) {
  return simple_head(net, x, norm, "aux", 256, options.dropout.value_or(0.1F), options.num_classes);
}

/// What the three networks differ in.
struct Form {
  const char* prefix = "";  // of the backbone's names
  Head head = nullptr, aux_head = nullptr;
  bool align_corners = false;
};

Model segmentation(const Form& form, const SegmentationOptions& options) {
  const ResNetOptions backbone = with_output_stride(options.backbone, options.output_stride);
  return [=](NetworkBuilder& net, Value* x, const NormLayer& norm) {
    NormLayer backbone_norm = norm;
    backbone_norm.frozen = norm.frozen || options.frozen_backbone;
    const auto features = resnet_features(net, x, backbone_norm, backbone, form.prefix);
    const auto output = [&](const char* name, Head head, Value* of) {
      Value* logits = head(net, of, norm, options);
      return Output{name, net.upsample_bilinear(logits, x->shape.height(), x->shape.width(),
                                                form.align_corners)};
    };
    Outputs outputs{output("out", form.head, features[3])};
    if (options.aux_head) outputs.push_back(output("aux", form.aux_head, features[2]));
    return outputs;
  };
}

}  // namespace

Model fcn(const SegmentationOptions& options) {
  return segmentation({"backbone.", fcn_head, fcn_aux_head, false}, options);
}

Model deeplabv3(const SegmentationOptions& options) {
  return segmentation({"backbone.", deeplabv3_head, fcn_aux_head, false}, options);
}

Model pspnet(const SegmentationOptions& options) {
  SegmentationOptions own = options;
  own.backbone.deep_stem = true;
  own.backbone.dilate_first_block = true;
  return segmentation({"", pspnet_head, pspnet_aux_head, true}, own);
}

Architecture make_segmentation(const ModelOptions& options) {
  const std::size_t dash = options.arch.find('_');
  const std::string head = options.arch.substr(0, dash);
  SegmentationOptions own{.backbone = resnet_options(options.arch.substr(dash + 1)),
                          .num_classes = options.num_classes,
                          .output_stride = options.output_stride,
                          .aux_head = options.aux_head,
                          .frozen_backbone = options.frozen_bn};
  if (options.dropout) own.dropout = static_cast<float>(*options.dropout);
  const std::string description = lockstep::concat(
      options.arch, " of output stride ", own.output_stride, own.aux_head ? ", auxiliary head" : "",
      own.frozen_backbone ? ", backbone's BatchNorm frozen" : "");
  const bool is_pspnet = head == "pspnet";
  Architecture result{.model = is_pspnet       ? pspnet(own)
                               : head == "fcn" ? fcn(own)
                                               : deeplabv3(own),
                      .description = description,
                      .heads = is_pspnet ? std::vector<std::string>{"ppm", "cls"}
                                         : std::vector<std::string>{"classifier"}};
  if (own.aux_head) result.heads.push_back(is_pspnet ? "aux" : "aux_classifier");
  return result;
}

}  // namespace lockstep
