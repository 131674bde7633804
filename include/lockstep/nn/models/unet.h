#pragma once
// The U-Net of the design (§1): stages of two blocks (3x3 convolution, BatchNorm, ReLU), 2x2
// max-pool between them; decoder: bilinear x2, concatenate [skip, upsampled], two blocks; a 1x1
// convolution with bias.

#include <cstdint>
#include <memory>

#include "lockstep/nn/network.h"

namespace lockstep {

struct UnetOptions {
  std::int64_t width = 16;
  std::int64_t depth = 4;
  std::int64_t num_classes = 0;
};

/// Images must have heights and widths that are multiples of this: 2^(depth-1).
std::int64_t unet_size_divisor(const UnetOptions& options);

/// input [N, H, W, 3]; output logits [N, H, W, num_classes]. Throws ConfigError when H or W is not
/// a multiple of `unet_size_divisor`.
std::unique_ptr<Network> make_unet(const UnetOptions& options, const BatchNormOptions& batch_norm,
                                   const Shape& input, const PlanOptions& plan, Backend& backend,
                                   ParameterStore& store);

/// Kaiming-normal convolution weights (He et al. 2015, eq. 10: std = sqrt(2 / fan_in)) from
/// counter-based random numbers keyed by seed and parameter name; biases 0, gamma 1, beta 0.
/// Touches device memory through the backend; the result depends on nothing but (seed, names,
/// shapes).
void initialize_parameters(ParameterStore& store, Backend& backend, std::uint64_t seed);

}  // namespace lockstep
