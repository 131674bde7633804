#pragma once
// What the backward passes of norm layers read: x and dy, and y where a residual was added, with dy
// masked by the ReLU.

#include <bit>
#include <cstdint>

#include "backend/cpu/batch_norm_kernels.h"
#include "backend/cpu/element.h"
#include "backend/cpu/prefetch.h"
#include "backend/formulas.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Where the ReLU's mask comes from.
enum class Mask { kNone, kFromX, kFromY };

/// The rows that a kernel looks at.
struct MaskedGradient {
  MaskedGradient(const Tensor& x_, const Tensor& grad_y_, const Tensor& y_,
                 const ChannelScale& scale_)
      : x(x_),
        grad_y(grad_y_),
        y(y_),
        scale(scale_),
        dense(x.dense() && grad_y.dense() && (!y || y.dense())) {}

  Tensor x, grad_y, y;
  ChannelScale scale;
  bool dense;  // rows follow one another in all of them
};

/// The kernel for this ReLU: of the output as it is, recomputed from x, or read from y.
template <typename Kernel>
Kernel* choose_mask(bool relu, const Tensor& y, Kernel* none, Kernel* from_x, Kernel* from_y) {
  if (!relu) return none;
  return y ? from_y : from_x;
}

/// dy' of one element; `y` is used only for kFromY. `<= 0` lets NaN pass, as the forward pass does.
/// A bit mask, because GCC turns a choice between 0 and the gradient into a branch and then does
/// not vectorise.
template <Mask kMask>
inline float masked(float grad, float x, float y, float mean, float scale, float shift) {
  if constexpr (kMask == Mask::kNone) return grad;
  const float output = kMask == Mask::kFromY ? y : normalize(x, mean, scale, shift);
  const std::uint32_t keep = output <= 0.0F ? 0U : ~0U;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(grad) & keep);
}

template <typename T>
struct RowPointers {
  const T* x;
  const T* grad_y;
  const T* y;  // grad_y where no y is needed: readable, never used
  std::int64_t x_stride, grad_y_stride, y_stride;

  RowPointers(const MaskedGradient& g, std::int64_t row)
      : x(row_of<const T>(g.x, row)),
        grad_y(row_of<const T>(g.grad_y, row)),
        y(g.y ? row_of<const T>(g.y, row) : grad_y),
        x_stride(g.x.row_stride),
        grad_y_stride(g.grad_y.row_stride),
        y_stride(g.y ? g.y.row_stride : grad_y_stride) {}
  [[gnu::always_inline]] void prefetch(std::int64_t row, std::int64_t channels) const {
    prefetch_to_read(x + row * x_stride, x_stride, channels);
    prefetch_to_read(grad_y + row * grad_y_stride, grad_y_stride, channels);
    if (y != grad_y) prefetch_to_read(y + row * y_stride, y_stride, channels);
  }
  void advance(std::int64_t rows) {
    x += rows * x_stride;
    grad_y += rows * grad_y_stride;
    y += rows * y_stride;
  }
};

/// Before grad_x is written, because that may be the same memory as grad_y.
template <Mask kMask, typename T>
void residual_row(const RowPointers<T>& rows, const ChannelScale& channel, std::int64_t channels,
                  T* grad_residual, bool accumulate) {
  const RowPointers<T> at = rows;
#pragma omp simd
  for (std::int64_t c = 0; c < channels; ++c) {
    const float grad = masked<kMask>(at.grad_y[c], at.x[c], at.y[c], channel.mean[c],
                                     channel.scale[c], channel.shift[c]);
    grad_residual[c] = accumulate ? grad_residual[c] + grad : grad;
  }
}

}  // namespace lockstep
