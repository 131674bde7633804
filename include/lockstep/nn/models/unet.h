#pragma once
// The U-Net: stages of two blocks (3x3 convolution, BatchNorm, ReLU), 2x2 max-pool between them;
// decoder: bilinear x2, concatenate [skip, upsampled], two blocks; a 1x1 convolution with bias.

#include <cstdint>

#include "lockstep/nn/model.h"

namespace lockstep {

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

}  // namespace lockstep
