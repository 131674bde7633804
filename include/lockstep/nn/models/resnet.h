#pragma once
// ResNet (He et al. 2015, Deep Residual Learning, table 1) and ResNeXt (Xie et al. 2016, table 1)
// in torchvision's form: its state-dict names, the stride of a bottleneck in its 3x3 convolution.

#include <array>
#include <cstdint>
#include <string>

#include "lockstep/nn/model.h"

namespace lockstep {

struct ResNetOptions {
  bool bottleneck = true;                    // blocks of 1x1, 3x3, 1x1; else of two 3x3
  std::array<int, 4> blocks = {3, 4, 6, 3};  // of layer1 to layer4
  std::int64_t width = 64;                   // channels of the stem; layer1 to layer4: 1, 2, 4, 8
                                             // times as many in the middle of a bottleneck
  std::int64_t groups = 1;                   // of a bottleneck's 3x3 convolution
  std::int64_t width_per_group = 64;         // its channels in layer1, per group, for a width of 64
  std::array<bool, 3> dilated = {};          // layer2 to layer4: dilation instead of stride
  bool deep_stem = false;                    // three 3x3 convolutions instead of one of 7x7
  bool dilate_first_block = false;           // also the block that would have had the stride
  bool small_images = false;                 // stem: one 3x3 convolution that keeps the size, no
                                             // pooling (He et al. 2015, section 4.2)
};

/// The options of "resnet18", "resnet34", "resnet50", "resnet101" or "resnext50_32x4d". Throws
/// ConfigError naming these for another name.
ResNetOptions resnet_options(const std::string& name);

/// The same with layer3 and layer4 dilated so that features are 1/8, 1/16 or 1/32 of the image
/// (Chen et al. 2017, Rethinking Atrous Convolution, section 3.1). Throws ConfigError for another
/// stride, and for blocks that are no bottlenecks unless it is 32.
ResNetOptions with_output_stride(ResNetOptions options, int output_stride);

/// Declares stem and layer1 to layer4, with names that begin with `prefix` ("backbone."); returns
/// the outputs of the four layers, for a width of 64 [N, H / 4, W / 4, 64 or 256] first (with
/// `small_images` [N, H, W, ...]). Throws ConfigError for options that do not fit each other.
std::array<Value*, 4> resnet_features(NetworkBuilder& net, Value* x, const NormLayer& norm,
                                      const ResNetOptions& options, const std::string& prefix);

/// Classification: input [N, H, W, C]; output "out": logits [N, num_classes] of the globally
/// averaged features ("fc").
Model resnet(const ResNetOptions& options, std::int64_t num_classes);

/// An entry of `builtin_models`, named by `options.arch`.
Architecture make_resnet(const ModelOptions& options);

}  // namespace lockstep
