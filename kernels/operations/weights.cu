// Transposition of a batch of matrices. A block takes a tile of 32 x 32 elements through shared
// memory, so that both the reads and the writes of a warp are one row of up to 32 neighbouring
// elements. Tiles are numbered over all matrices, and a block takes every gridDim-th.

#include "kernels/operations/weights.h"
#include "kernels/primitives/launch.h"
#include "lockstep/core/check.h"

namespace lockstep::gpu {
namespace {

constexpr int kTile = 32;
constexpr int kWarps = 8;
constexpr std::int64_t kMostBlocks = 1 << 16;

struct Tile {
  float values[kTile][kTile + 1];  // one more: a column's elements lie in different banks
};

__global__ void transpose_kernel(Matrices shape, const float* __restrict__ from,
                                 float* __restrict__ to, bool accumulate) {
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
        tile.values[i][lane] = from[matrix + row * shape.columns + column];
      }
    }
    __syncthreads();
    for (int i = warp; i < kTile; i += kWarps) {
      const std::int64_t row = first_row + lane;
      const std::int64_t column = first_column + i;
      if (row < shape.rows && column < shape.columns) {
        float& target = to[matrix + column * shape.rows + row];
        target = accumulate ? target + tile.values[lane][i] : tile.values[lane][i];
      }
    }
    __syncthreads();  // the next tile overwrites this one
  }
}

}  // namespace

void transpose(const Context& context, const Matrices& shape, const float* from, float* to,
               bool accumulate) {
  LOCKSTEP_CHECK(shape.batch >= 0 && shape.rows >= 0 && shape.columns >= 0,
                 "expected extents of at least 0, got ", shape.batch, " matrices of ", shape.rows,
                 " x ", shape.columns);
  const std::int64_t tiles =
      shape.batch * ((shape.rows + kTile - 1) / kTile) * ((shape.columns + kTile - 1) / kTile);
  launch(transpose_kernel, blocks_for(tiles, 1, kMostBlocks), kWarps * kWarpSize, context.stream,
         shape, from, to, accumulate);
}

}  // namespace lockstep::gpu
