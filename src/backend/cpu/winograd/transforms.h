#pragma once
// The transforms of Winograd's minimal filtering F(2x2, 3x3) (Lavin and Gray 2016,
// arXiv:1509.09308): an output tile of 2x2 values Y comes from an input tile of 4x4 values d and a
// 3x3 kernel g by 16 products instead of 36,
//
//   Y = A^T [(G g G^T) . (B^T d B)] A        (. is element by element; summed over channels before
//   A)
//
//         | 1  0 -1  0 |        |  1   0   0  |          | 1  1  1  0 |
//   B^T = | 0  1  1  0 |    G = | 1/2 1/2 1/2 |    A^T = | 0  1 -1 -1 |
//         | 0 -1  1  0 |        | 1/2-1/2 1/2 |
//         | 0  1  0 -1 |        |  0   0   1  |
//
// and, transposing that, the gradient of the kernel is G^T [(A dY A^T) . (B^T d B)] G, summed over
// tiles. The only factors are 1 and 1/2, so that the rounding error is that of a direct
// convolution; larger tiles (F(4x4, 3x3)) are faster, but several times less accurate.
//
// The 16 values of a transformed tile are its points; the products of one point over all tiles and
// channels are a matrix product (gemm.h). Channels of transformed data are padded with
// zeros to multiples of kChannelUnit.

#include <algorithm>
#include <cstdint>
#include <functional>

#include "lockstep/core/tensor.h"

namespace lockstep::winograd {

inline constexpr std::int64_t kPoints = 16;

/// Consecutive tiles of a grid.
struct TileRange {
  std::int64_t first = 0, count = 0;
};

/// Tiles of 2x2 over an output [batch, height, width, channels]; the last row and column may stick
/// out. Tiles are counted along rows, then columns of tiles, then samples.
struct TileGrid {
  std::int64_t rows = 0, columns = 0;  // of tiles, per sample
  std::int64_t count = 0;              // over all samples

  explicit TileGrid(const Shape& output)
      : rows((output.height() + 1) / 2),
        columns((output.width() + 1) / 2),
        count(output.batch() * rows * columns) {}

  /// [first, first + tiles), as far as the grid goes.
  TileRange range(std::int64_t first, std::int64_t tiles) const {
    return {first, std::clamp<std::int64_t>(count - first, 0, tiles)};
  }
};

/// Transformed tiles: point p, tile t (within a range), channel c at data[p * stride + t * channels
/// + c].
struct PointTiles {
  float* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t channels = 0;  // padded
};

/// The layout of transformed kernels: point p at data[p * stride], each as `Products::multiply`
/// wants its factor b: depth (the channels summed over) x lanes (the channels that come out), both
/// padded, in panels of `panel` columns.
struct PointKernels {
  float* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t depth = 0, lanes = 0;
  std::int64_t panel = 0;
};

/// What one pass reads of weights [out, in, 3, 3]: which channels are summed over and which come
/// out.
struct KernelSource {
  const float* data = nullptr;
  std::int64_t depth = 0, depth_stride = 0;
  std::int64_t lanes = 0, lane_stride = 0;
  bool rotated =
      false;  // by 180 degrees: the backward pass is a convolution with the kernel so turned
};

/// The transforms of tiles with vectors of 8 or 16 floats. Both widths give the same bits.
template <std::int64_t kLanes>
struct TileTransforms {
  /// v = B^T d B of the range's input tiles; tile (r, c) starts at pixel (2r - padding_h, 2c -
  /// padding_w), and pixels outside x are zero.
  static void input(const Tensor& x, std::int64_t padding_h, std::int64_t padding_w,
                    const TileGrid& grid, TileRange range, const PointTiles& v);

  /// z = A dY A^T of the range's tiles of the gradient of the output; pixels outside it are zero.
  static void grad_output(const Tensor& grad_y, const TileGrid& grid, TileRange range,
                          const PointTiles& z);

  /// y = A^T m A + bias at the range's tiles; bias null for none. Pixels outside y are dropped.
  static void output(const PointTiles& m, const TileGrid& grid, TileRange range, const float* bias,
                     const Tensor& y);
};

/// body(begin, end) for the rows (pixels of all images, in order) of an output of this shape that
/// the range's tiles hold, in runs.
void for_each_output_run(const Shape& output, const TileGrid& grid, TileRange range,
                         const std::function<void(std::int64_t begin, std::int64_t end)>& body);

/// Asks the memory for the pixels of two rows per tile of the range, from row 2r + row_offset of
/// the tensor on, or rather for one of kPrefetchShares shares of them: called between products, it
/// brings what the next transform reads or writes while the processor computes. Changes nothing but
/// time.
inline constexpr std::int64_t kPrefetchShares = 4;
void prefetch_pixels(const Tensor& tensor, std::int64_t row_offset, const TileGrid& grid,
                     TileRange range, std::int64_t share);

inline constexpr std::int64_t kKernelLanes = 8;
/// u = G g G^T for lanes [first_lane, first_lane + kKernelLanes). REQUIRES: first_lane a multiple
/// of kKernelLanes.
void transform_kernels(const KernelSource& source, std::int64_t first_lane, const PointKernels& u);

/// grad_weight += G^T q G for one output channel; `grad_weight` points to its [in, 3, 3], and point
/// p of input channel c is the sum over s < sums of q[s * sum_stride + p * point_stride + c], in
/// this order. q holds a multiple of kChannelUnit input channels.
void add_weight_gradient(const float* q, std::int64_t sums, std::int64_t sum_stride,
                         std::int64_t point_stride, std::int64_t in_channels, float* grad_weight);

}  // namespace lockstep::winograd
