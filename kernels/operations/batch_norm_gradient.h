#pragma once
// The backward kernels of norm layers: what they read, x and dy, and y where a residual was added,
// masked by the ReLU, and how they write dx. For .cu files only.

#include <cstdint>

#include "backend/formulas.h"
#include "kernels/operations/batch_norm_channels.h"
#include "kernels/primitives/channel_slabs.h"
#include "kernels/primitives/ordered_sum.h"

namespace lockstep::gpu {

/// Where the ReLU's mask comes from: there is none, it is recomputed from x, or read from y.
enum class Mask { kNone, kFromX, kFromY };

/// Rows in flight. Fewer where y is read too: its packs take the registers of theirs.
inline constexpr int kMostRows = 4;
template <Mask kMask, bool kWhole>
inline constexpr int kRowsAtOnce = !kWhole                 ? 1
                                   : kMask == Mask::kFromY ? 2
                                                           : kMostRows;

template <typename T>
struct GradientRows {
  ChannelSlabs slabs;
  Rows<const T> x, grad_y, y;  // y as x where it is not needed: readable, never read
};

/// A thread's place in all of them.
template <Mask kMask, typename T>
struct GradientWalk {
  RowWalk<const T> x, grad_y, y;

  __device__ GradientWalk(const GradientRows<T>& rows, const SlabThread& thread, bool backwards)
      : x(rows.x, rows.slabs, thread, backwards),
        grad_y(rows.grad_y, rows.slabs, thread, backwards),
        y(rows.y, rows.slabs, thread, backwards) {}
  __device__ void advance(int rows) {
    x.advance(rows);
    grad_y.advance(rows);
    if constexpr (kMask == Mask::kFromY) y.advance(rows);
  }
};

/// Packs of kRows rows.
template <Mask kMask, int kRows, typename T>
struct GradientPacks {
  Pack<T> x[kRows] = {};
  Pack<T> grad_y[kRows] = {};
  Pack<T> y[kMask == Mask::kFromY ? kRows : 1] = {};

  template <bool kWhole, bool kPartial>
  __device__ void load(const GradientWalk<kMask, T>& walk, int rows, int valid) {
    load_rows<kRows, kWhole, kPartial>(walk.x, rows, valid, x);
    load_rows<kRows, kWhole, kPartial>(walk.grad_y, rows, valid, grad_y);
    if constexpr (kMask == Mask::kFromY) load_rows<kRows, kWhole, kPartial>(walk.y, rows, valid, y);
  }
  // dy' of element v of row i. `<= 0` lets NaN pass, as the forward pass does.
  template <int kPack>
  __device__ float masked(int i, int v, const PackConstants<kPack>& c) const {
    const float grad = grad_y[i][v];
    if constexpr (kMask == Mask::kNone) {
      return grad;
    } else if constexpr (kMask == Mask::kFromX) {
      return normalize(x[i][v], c.mean[v], c.scale[v], c.shift[v]) <= 0.0F ? 0.0F : grad;
    } else {
      return y[i][v] <= 0.0F ? 0.0F : grad;
    }
  }
};

/// What dx needs of a thread's channels.
template <int kPack>
struct PackGradientConstants {
  PackConstants<kPack> forward;
  float first_terms[kPack], second_terms[kPack];  // of the formula

  __device__ void set(int v, const ChannelConstants& of, float first_term, float second_term) {
    forward.mean[v] = of.mean;
    forward.scale[v] = of.scale;
    forward.shift[v] = of.shift;
    first_terms[v] = first_term;
    second_terms[v] = second_term;
  }
};

/// dx, and the residual's gradient where there is a residual.
template <typename T>
struct InputGradient {
  InputGradient(const Tensor& grad_x, const Tensor& grad_residual, bool accumulate)
      : x(grad_x), residual(grad_residual), accumulate_residual(accumulate && grad_residual) {}

  Rows<T> x, residual;
  bool accumulate_residual;
};

/// dx of row i by a Formula of backend/formulas.h. `grad_residual` may be null.
template <typename Formula, bool kWhole, Mask kMask, int kRows, typename T, int kPack>
__device__ void write_row(const GradientPacks<kMask, kRows, T>& packs, int i, int valid,
                          const PackGradientConstants<kPack>& constants, T* grad_x,
                          T* grad_residual, bool accumulate) {
  Pack<T> out = {};
  Pack<T> residual = {};
  if (accumulate) residual = load_elements<kWhole>(grad_residual, valid);
  LOCKSTEP_UNROLL
  for (int v = 0; v < kPack; ++v) {
    const float grad = packs.masked(i, v, constants.forward);
    const float centred = packs.x[i][v] - constants.forward.mean[v];
    out.set(v, from_float<T>(Formula::of(constants.forward.scale[v], grad, centred,
                                         constants.first_terms[v], constants.second_terms[v])));
    residual.set(v, from_float<T>(accumulate ? residual[v] + grad : grad));
  }
  store_elements<kWhole>(grad_x, out, valid);
  if (grad_residual != nullptr) store_elements<kWhole>(grad_residual, residual, valid);
}

/// The same of all rows of a thread.
template <typename Formula, bool kWhole, Mask kMask, typename T, int kPack>
__device__ void write_input_gradient(const GradientRows<T>& rows, const InputGradient<T>& gradient,
                                     const SlabThread& thread,
                                     const PackGradientConstants<kPack>& constants) {
  constexpr int kRows = kRowsAtOnce<kMask, kWhole>;
  const bool residual = gradient.residual.data != nullptr;
  GradientWalk<kMask, T> walk(rows, thread, false);
  RowWalk<T> grad_x(gradient.x, rows.slabs, thread, false);
  RowWalk<T> grad_residual(residual ? gradient.residual : gradient.x, rows.slabs, thread, false);
  take_rows<kRows>(thread.count, [&](int count, auto partial) {
    constexpr bool kPartial = decltype(partial)::value;
    GradientPacks<kMask, kRows, T> packs;
    packs.template load<kWhole, kPartial>(walk, count, thread.valid);
    LOCKSTEP_UNROLL
    for (int i = 0; i < kRows; ++i) {
      if (kPartial && i >= count) break;
      write_row<Formula, kWhole>(packs, i, thread.valid, constants, grad_x.row(i),
                                 residual ? grad_residual.row(i) : nullptr,
                                 gradient.accumulate_residual);
    }
    walk.advance(count);
    grad_x.advance(count);
    grad_residual.advance(count);
  });
}

/// The kernel for this ReLU and alignment.
template <typename Kernel>
Kernel* choose(bool whole, bool relu, const Tensor& y, Kernel* const (&kernels)[2][3]) {
  const int mask = !relu ? 0 : y ? 2 : 1;
  return kernels[whole ? 1 : 0][mask];
}

/// Gradients of gamma and beta, += those of the images in their tree: a channel's.
struct AffineGradients {
  float* of_images;  // [images, 2, C]
  std::int64_t images, channels;
  float* weight;  // [C]
  float* bias;    // [C]

  /// Has the images' gradients written to where they are added up from.
  void collect(ImagesReduce& reduce) const {
    reduce.grad_weight = of_images;
    reduce.grad_bias = of_images + channels;
    reduce.grad_stride = 2 * channels;
  }
  __device__ void operator()(std::int32_t c) const {
    weight[c] += sum_in_image_tree(of_images + c, images, 2 * channels);
    bias[c] += sum_in_image_tree(of_images + channels + c, images, 2 * channels);
  }
};

template <typename T>
GradientRows<T> gradient_rows(const ChannelSlabs& slabs, const Tensor& x, const Tensor& grad_y,
                              const Tensor& y) {
  return {slabs, Rows<const T>(x), Rows<const T>(grad_y), Rows<const T>(y ? y : x)};
}

}  // namespace lockstep::gpu
