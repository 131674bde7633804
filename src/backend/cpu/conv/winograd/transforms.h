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
// channels are a matrix product (products/products.h). Channels of transformed data are padded with
// zeros to multiples of kChannelUnit.

#include <algorithm>
#include <cstdint>
#include <functional>

#include "backend/cpu/conv/products/products.h"
#include "lockstep/core/tensor.h"

namespace lockstep::winograd {

using matmul::kChannelUnit;
using matmul::padded;

inline constexpr std::int64_t kPoints = 16;

/// Consecutive tiles of a grid.
struct TileRange {
  std::int64_t first = 0, count = 0;
};

/// Which pixels of an image are neighbours to a convolution: every `rows`-th and `columns`-th. An
/// image is rows * columns sub-grids of such neighbours, and a dilated convolution is an undilated
/// one of each.
struct Dilation {
  std::int64_t rows = 1, columns = 1;
  std::int64_t sub_grids() const { return rows * columns; }
};

/// Tiles of 2x2 over the sub-grids of an output [batch, height, width, channels]; the last row and
/// column of a sub-grid may stick out, and where the dilation does not divide the extents, those of
/// some sub-grids lie outside. Tiles are counted along rows, then columns of tiles, then sub-grids,
/// then samples.
struct TileGrid {
  Dilation dilation;
  std::int64_t rows = 0, columns = 0;  // of tiles, per sub-grid
  std::int64_t count = 0;              // over all samples

  explicit TileGrid(const Shape& output, Dilation each = {})
      : dilation(each),
        rows(tiles(output.height(), each.rows)),
        columns(tiles(output.width(), each.columns)),
        count(output.batch() * each.sub_grids() * rows * columns) {}

  /// [first, first + tiles), as far as the grid goes.
  TileRange range(std::int64_t first, std::int64_t tiles) const {
    return {first, std::clamp<std::int64_t>(count - first, 0, tiles)};
  }

 private:
  static std::int64_t tiles(std::int64_t extent, std::int64_t dilation) {
    const std::int64_t pixels = (extent + dilation - 1) / dilation;  // of the largest sub-grid
    return (pixels + 1) / 2;
  }
};

/// Transformed tiles: point p, tile t (within a range), channel c at data[p * stride + t *
/// tile_stride + c].
struct PointTiles {
  float* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t channels = 0;  // padded
  std::int64_t tile_stride = channels;
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
  /// v = B^T d B of the range's input tiles; tile (r, c) of a sub-grid starts at its pixel (2r -
  /// padding_h, 2c - padding_w), and pixels outside x are zero.
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

/// G^T q G of `channels` (a multiple of kKernelLanes) kernels, written or added: point p of kernel
/// c at q[p * stride + c], position k of its nine at values[k * channels + c].
void kernel_gradients(const float* q, std::int64_t stride, std::int64_t channels, bool add,
                      float* values);

}  // namespace lockstep::winograd
