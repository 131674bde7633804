#pragma once
// The transforms of tiles and kernels for Winograd's minimal filtering F(m x m, 3x3), whose
// formulas are in filter.h: an output tile of m x m values comes from an input tile of (m + 2) x (m
// + 2).
//
// The (m + 2)^2 values of a transformed tile are its points; the products of one point over all
// tiles and channels are a matrix product (products/products.h). Channels of transformed data are
// padded with zeros to multiples of kChannelUnit.

#include <algorithm>
#include <cstdint>
#include <functional>

#include "backend/cpu/conv/products/products.h"
#include "lockstep/core/tensor.h"

namespace lockstep::winograd {

using matmul::kChannelUnit;
using matmul::padded;

/// Points of a tile of kTile x kTile outputs.
template <int kTile>
inline constexpr std::int64_t kPoints = (kTile + 2) * (kTile + 2);

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

/// Tiles of `tile` x `tile` over the sub-grids of an output [batch, height, width, channels]; the
/// last row and column of a sub-grid may stick out, and where the dilation does not divide the
/// extents, those of some sub-grids lie outside. Tiles are counted along rows, then columns of
/// tiles, then sub-grids, then samples.
struct TileGrid {
  std::int64_t tile;
  Dilation dilation;
  std::int64_t rows = 0, columns = 0;  // of tiles, per sub-grid
  std::int64_t count = 0;              // over all samples

  TileGrid(const Shape& output, std::int64_t size, Dilation each)
      : tile(size),
        dilation(each),
        rows(tiles(output.height(), each.rows)),
        columns(tiles(output.width(), each.columns)),
        count(output.batch() * each.sub_grids() * rows * columns) {}

  /// [first, first + tiles), as far as the grid goes.
  TileRange range(std::int64_t first, std::int64_t tiles) const {
    return {first, std::clamp<std::int64_t>(count - first, 0, tiles)};
  }

 private:
  std::int64_t tiles(std::int64_t extent, std::int64_t each) const {
    const std::int64_t pixels = (extent + each - 1) / each;  // of the largest sub-grid
    return (pixels + tile - 1) / tile;
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

/// The transforms of tiles of kTile x kTile outputs with vectors of 8 or 16 floats, of tensors of
/// T. Both widths give the same bits.
template <std::int64_t kLanes, int kTile, typename T>
struct TileTransforms {
  /// v = the range's input tiles, transformed; tile (r, c) of a sub-grid starts at its pixel
  /// (kTile * r - padding_h, kTile * c - padding_w), and pixels outside x are zero.
  static void input(const Tensor& x, std::int64_t padding_h, std::int64_t padding_w,
                    const TileGrid& grid, TileRange range, const PointTiles& v);

  /// z = the range's tiles of the gradient of the output, transformed; pixels outside it are zero.
  static void grad_output(const Tensor& grad_y, const TileGrid& grid, TileRange range,
                          const PointTiles& z);

  /// y = the range's tiles of the products m, transformed, + bias; bias null for none. Pixels
  /// outside y are dropped.
  static void output(const PointTiles& m, const TileGrid& grid, TileRange range, const float* bias,
                     const Tensor& y);
};

/// body(begin, end) for the rows (pixels of all images, in order) of an output of this shape that
/// the range's tiles hold, in runs.
void for_each_output_run(const Shape& output, const TileGrid& grid, TileRange range,
                         const std::function<void(std::int64_t begin, std::int64_t end)>& body);

/// Asks the memory for the pixels of a tile's rows of each tile of the range, from row_offset rows
/// beyond its first one on, or rather for one of kPrefetchShares shares of them: called between
/// products, it brings what the next transform reads or writes while the processor computes.
/// Changes nothing but time.
inline constexpr std::int64_t kPrefetchShares = 4;
void prefetch_pixels(const Tensor& tensor, std::int64_t row_offset, const TileGrid& grid,
                     TileRange range, std::int64_t share);

inline constexpr std::int64_t kKernelLanes = kChannelUnit;
/// u = the kernels, transformed, for lanes [first_lane, first_lane + kKernelLanes). REQUIRES:
/// first_lane a multiple of kKernelLanes.
template <int kTile>
void transform_kernels(const KernelSource& source, std::int64_t first_lane, const PointKernels& u);

/// The gradients of `channels` (a multiple of kChannelUnit) kernels, written or added: point p of
/// kernel c at q[p * stride + c], position k of its nine at values[k * channels + c].
template <int kTile>
void kernel_gradients(const float* q, std::int64_t stride, std::int64_t channels, bool add,
                      float* values);

}  // namespace lockstep::winograd
