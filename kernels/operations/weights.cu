// Transposition of a batch of matrices. A block takes a tile of 32 x 32 elements through shared
// memory, so that both the reads and the writes of a warp are one row of up to 32 neighbouring
// elements. Tiles are numbered over all matrices, and a block takes every gridDim-th.

#include "kernels/operations/weights.h"
#include "kernels/primitives/element.h"
#include "kernels/primitives/launch.h"

namespace lockstep::gpu {
namespace {

constexpr int kTile = 32;
constexpr int kWarps = 8;
constexpr std::int64_t kMostBlocks = 1 << 16;

struct Tile {
  float values[kTile][kTile + 1];  // one more: a column's elements lie in different banks
};

template <typename From, typename To>
__global__ void transpose_kernel(Matrices shape, const From* __restrict__ from, To* __restrict__ to,
                                 bool accumulate) {
  Tile& tile = block_shared<Tile>();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t across = (shape.columns + kTile - 1) / kTile;
  const std::int64_t down = (shape.rows + kTile - 1) / kTile;
  const std::int64_t tiles = shape.batch * down * across;
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const std::int64_t first_column = t % across * kTile;
    const std::int64_t first_row = t / across % down * kTile;
    const std::int64_t matrix = t / across / down * shape.rows * shape.columns;
    for (int i = warp; i < kTile; i += kWarps) {
      const std::int64_t row = first_row + i;
      const std::int64_t column = first_column + lane;
      if (row < shape.rows && column < shape.columns) {
        tile.values[i][lane] = to_float(from[matrix + row * shape.columns + column]);
      }
    }
    __syncthreads();
    for (int i = warp; i < kTile; i += kWarps) {
      const std::int64_t row = first_row + lane;
      const std::int64_t column = first_column + i;
      if (row < shape.rows && column < shape.columns) {
        To& target = to[matrix + column * shape.rows + row];
        const float value = tile.values[lane][i];
        target = from_float<To>(accumulate ? to_float(target) + value : value);
      }
    }
    __syncthreads();  // the next tile overwrites this one
  }
}

}  // namespace

void transpose(const Context& context, const Matrices& shape, const Tensor& from, const Tensor& to,
               bool accumulate) {
  const std::int64_t elements = shape.batch * shape.rows * shape.columns;
  LOCKSTEP_CHECK(shape.batch >= 0 && shape.rows >= 0 && shape.columns >= 0,
                 "transpose: expected extents of at least 0, got ", shape.batch, " matrices of ",
                 shape.rows, " x ", shape.columns);
  for (const Tensor* tensor : {&from, &to}) {
    LOCKSTEP_CHECK(tensor->dense() && tensor->shape.elements() == elements,
                   "transpose: expected a dense tensor of ", elements, " elements, got ",
                   to_string(tensor->shape), " with row stride ", tensor->row_stride);
  }
  const std::int64_t tiles =
      shape.batch * ((shape.rows + kTile - 1) / kTile) * ((shape.columns + kTile - 1) / kTile);
  with_element_type(from.dtype, [&](auto source) {
    with_element_type(to.dtype, [&](auto target) {
      using From = decltype(source);
      using To = decltype(target);
      launch(transpose_kernel<From, To>, blocks_for(tiles, 1, kMostBlocks), kWarps * kWarpSize,
             context.stream, shape, static_cast<const From*>(from.data), static_cast<To*>(to.data),
             accumulate);
    });
  });
}

}  // namespace lockstep::gpu
