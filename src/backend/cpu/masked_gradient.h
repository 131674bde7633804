#pragma once
// The backward passes of norm layers: what they read, x and dy, and y where a residual was added,
// with dy masked by the ReLU, and how they write dx.

#include <bit>
#include <cstdint>

#include "backend/cpu/batch_norm_kernels.h"
#include "backend/cpu/element.h"
#include "backend/cpu/parallel_for.h"
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

/// dx, and the residual's gradient where there is a residual.
struct InputGradient {
  MaskedGradient gradient;
  const float* first_terms;   // [C] of the formula
  const float* second_terms;  // [C]
  Tensor grad_x, grad_residual;
  bool accumulate_residual;
};

template <typename T, Mask kMask, typename Formula>
void input_gradient_rows(const InputGradient& a, std::int64_t begin, std::int64_t end) {
  const MaskedGradient& g = a.gradient;
  const std::int64_t channels = g.x.shape.channels();
  const float* __restrict mean = g.scale.mean;
  const float* __restrict scale = g.scale.scale;
  const float* __restrict shift = g.scale.shift;
  const float* __restrict first = a.first_terms;
  const float* __restrict second = a.second_terms;
  RowPointers<T> rows(g, begin);
  for (std::int64_t row = begin; row < end; ++row, rows.advance(1)) {
    if (a.grad_residual) {
      residual_row<kMask>(rows, g.scale, channels, row_of<T>(a.grad_residual, row),
                          a.accumulate_residual);
    }
    rows.prefetch(0, channels);
    const RowPointers<T> at = rows;
    T* grad_x = row_of<T>(a.grad_x, row);
    prefetch_to_write(grad_x, a.grad_x.row_stride, channels);
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) {
      const float grad = masked<kMask>(at.grad_y[c], at.x[c], at.y[c], mean[c], scale[c], shift[c]);
      grad_x[c] = Formula::of(scale[c], grad, at.x[c] - mean[c], first[c], second[c]);
    }
  }
}

/// Writes dx by a Formula of backend/formulas.h.
template <typename Formula>
void write_input_gradient(const InputGradient& a, bool relu, int threads) {
  const Tensor& x = a.gradient.x;
  const auto kernel = with_element_type(x.dtype, [&]<typename T>(T) {
    return choose_mask(relu, a.gradient.y, input_gradient_rows<T, Mask::kNone, Formula>,
                       input_gradient_rows<T, Mask::kFromX, Formula>,
                       input_gradient_rows<T, Mask::kFromY, Formula>);
  });
  parallel_for(x.shape.rows(), x.shape.channels(), threads,
               [&](std::int64_t begin, std::int64_t end) { kernel(a, begin, end); });
}

}  // namespace lockstep
