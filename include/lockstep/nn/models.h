#pragma once
// The models that come with the library, as values of a program of one's own.

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/nn/model.h"

namespace lockstep {

// --- U-Net ---
// Stages of two blocks (3x3 convolution, BatchNorm, ReLU), 2x2 max-pool between them; decoder:
// bilinear x2, concatenate [skip, upsampled], two blocks; a 1x1 convolution with bias.

struct UnetOptions {
  std::int64_t width = 16;
  std::int64_t depth = 4;
  std::int64_t num_classes = 0;
};

/// Images must have heights and widths that are multiples of this: 2^(depth-1).
std::int64_t unet_size_divisor(const UnetOptions& options);

/// input [N, H, W, C]; output "out": logits [N, H, W, num_classes]. The model throws ConfigError
/// when H or W is not a multiple of `unet_size_divisor`, or for options that do not make a network.
Model unet(const UnetOptions& options);

/// The entry "unet" of `builtin_models`.
Architecture make_unet(const ModelOptions& options);

// --- ResNet (He et al. 2015, Deep Residual Learning, table 1), ResNeXt (Xie et al. 2016, table 1)
// In torchvision's form: its state-dict names, the stride of a bottleneck in its 3x3 convolution.

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

// --- segmentation heads on a dilated ResNet ---
// torchvision's FCN and DeepLabv3 with their state-dict names, and PSPNet with those of hszhao's
// semseg. Input [N, H, W, C]; output "out": logits [N, H, W, num_classes] at the image's size; with
// an auxiliary head also "aux", the same of layer3's features. Images may have any size.

struct SegmentationOptions {
  ResNetOptions backbone = {};  // of bottlenecks; output_stride decides about its dilation
  std::int64_t num_classes = 0;
  int output_stride = 8;  // 8, 16 or 32: the image's size over that of layer4's features
  bool aux_head = false;
  std::optional<float> dropout = {};  // of all heads; none: the published ones
  /// The backbone normalises by its running statistics in training, too, and leaves them alone.
  bool frozen_backbone = false;
};

/// Long et al. 2015 (Fully Convolutional Networks) in torchvision's form: one 3x3 convolution to a
/// quarter of the channels, dropout 0.1, a 1x1 convolution.
Model fcn(const SegmentationOptions& options);

/// Chen et al. 2017 (Rethinking Atrous Convolution): atrous spatial pyramid pooling with rates 12,
/// 24, 36 at an output stride of 8, in proportion at others, and image pooling; dropout 0.5.
Model deeplabv3(const SegmentationOptions& options);

/// Zhao et al. 2017 (Pyramid Scene Parsing Network): averages over 1, 2, 3 and 6 bins each way
/// beside the features; a deep stem; dropout 0.1; bilinear upsampling with aligned corners.
Model pspnet(const SegmentationOptions& options);

/// An entry of `builtin_models`, named by `options.arch`: fcn_, deeplabv3_ or pspnet_ and a ResNet.
Architecture make_segmentation(const ModelOptions& options);

}  // namespace lockstep
