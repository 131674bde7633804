#pragma once
// Segmentation heads on a dilated ResNet: torchvision's FCN and DeepLabv3 with their state-dict
// names, and PSPNet with those of hszhao's semseg. Input [N, H, W, C]; output "out": logits
// [N, H, W, num_classes] at the image's size; with an auxiliary head also "aux", the same of
// layer3's features. Images may have any size.

#include <cstdint>
#include <optional>

#include "lockstep/nn/model.h"
#include "lockstep/nn/models/resnet.h"

namespace lockstep {

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
