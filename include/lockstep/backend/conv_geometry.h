#pragma once
// The window arithmetic of convolutions and pooling, shared by all backends.

#include <cstdint>
#include <string>

#include "lockstep/core/shape.h"

namespace lockstep {

/// A 2-D convolution. Weights are [out_channels, in_channels / groups, kernel_h, kernel_w], as in
/// PyTorch.
struct ConvGeometry {
  std::int64_t in_channels = 0;
  std::int64_t out_channels = 0;
  std::int64_t kernel_h = 1, kernel_w = 1;
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t padding_h = 0, padding_w = 0;
  std::int64_t dilation_h = 1, dilation_w = 1;
  std::int64_t groups = 1;

  friend bool operator==(const ConvGeometry&, const ConvGeometry&) = default;

  /// Throws Error when an extent is not positive, padding is negative or groups do not divide the
  /// channels.
  void check() const;
  /// Shape of the weights (not channels-last: the order is PyTorch's).
  Shape weight_shape() const;
  std::int64_t weight_elements() const {
    return out_channels * (in_channels / groups) * kernel_h * kernel_w;
  }
  /// [N, H', W', out_channels] for an input [N, H, W, in_channels]. Throws Error when the window
  /// does not fit.
  Shape output_shape(const Shape& input) const;
};

/// "3x3 convolution of 16 to 32 channels, stride 1x1, padding 1x1, dilation 1x1, groups 1".
std::string to_string(const ConvGeometry& geometry);

/// The three things that are computed of a convolution, each by an implementation of its own.
enum class ConvPass : std::uint8_t { kForward, kBackwardData, kBackwardWeights };

const char* to_string(ConvPass pass);

/// A 2-D pooling window without dilation; floor mode, as PyTorch's default.
struct PoolGeometry {
  std::int64_t kernel_h = 2, kernel_w = 2;
  std::int64_t stride_h = 2, stride_w = 2;
  std::int64_t padding_h = 0, padding_w = 0;

  friend bool operator==(const PoolGeometry&, const PoolGeometry&) = default;

  /// Throws Error when an extent is not positive or the padding exceeds half the kernel.
  /// Max-pooling takes at most 255 positions besides: it stores the winner's position in a byte.
  void check() const;
  /// [N, H', W', C]. Throws Error when the window does not fit.
  Shape output_shape(const Shape& input) const;
};

}  // namespace lockstep
