#pragma once
// Windows of an image: pooling and interpolation.

#include <cstdint>

#include "lockstep/core/shape.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

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

/// What a replica's device computes over windows. `accumulate`: the gradient is added to, not
/// written. Backend says what all operations have in common.
class PoolingOperations {
 public:
  virtual ~PoolingOperations() = default;

  /// `winners`: uint8 of y's shape, dense; the window position of each maximum (the first of
  /// equals).
  virtual void max_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y,
                                const Tensor& winners) = 0;
  virtual void max_pool_backward(const PoolGeometry& geometry, const Tensor& winners,
                                 const Tensor& grad_y, const Tensor& grad_x, bool accumulate) = 0;
  /// Averages over the whole window, padding included (PyTorch's count_include_pad = true).
  virtual void avg_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y) = 0;
  virtual void avg_pool_backward(const PoolGeometry& geometry, const Tensor& grad_y,
                                 const Tensor& grad_x, bool accumulate) = 0;
  /// Averages over bins that divide x's height and width into y's, as
  /// torch.nn.functional.adaptive_avg_pool2d. Bins share positions where they do not divide evenly.
  virtual void adaptive_avg_pool_forward(const Tensor& x, const Tensor& y) = 0;
  virtual void adaptive_avg_pool_backward(const Tensor& grad_y, const Tensor& grad_x,
                                          bool accumulate) = 0;
  /// Bilinear interpolation from x's height and width to y's, as torch.nn.functional.interpolate.
  virtual void upsample_bilinear_forward(const Tensor& x, const Tensor& y, bool align_corners) = 0;
  virtual void upsample_bilinear_backward(const Tensor& grad_y, const Tensor& grad_x,
                                          bool align_corners, bool accumulate) = 0;
};

}  // namespace lockstep
