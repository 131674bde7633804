#pragma once
// What BatchNorm's two backward kernels read: x and dy, and y where a residual was added, masked by
// the ReLU. For .cu files only.

#include <cstdint>

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
