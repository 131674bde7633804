// Transpositions of batches of matrices, many batches in one launch. A block takes a tile through
// shared memory. Weights are matrices of many input channels and few taps, so a tile has all of a
// short side and much of the long one: its elements then follow one another in memory on both
// sides, or in long runs, and all lanes of a warp have one. Tiles are numbered over all matrices,
// and a block takes every gridDim-th.

#include <algorithm>

#include "kernels/operations/launchers.h"
#include "kernels/primitives/element.h"
#include "kernels/primitives/launch.h"

namespace lockstep::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kShort = 32;             // a side up to this is a tile's whole side
constexpr int kLong = 128;             // of a tile whose other side is short
constexpr int kSquare = 64;            // of a tile without a short side
constexpr int kLine = kLong * kShort;  // of a matrix of one column, whose order stays
constexpr int kBlocksPerMultiprocessor = 8;
constexpr int kMostItems = 64;  // of a launch

/// A tile's rows have an odd pitch: a column's elements lie in different banks.
LOCKSTEP_HOST_DEVICE inline int pitch_of(int columns) { return columns | 1; }

struct Tile {
  float values[kLong * (kShort + 1)];
};
static_assert(kLong * (kShort + 1) >= kShort * (kLong + 1));
static_assert(kLong * (kShort + 1) >= kSquare * (kSquare + 1));
static_assert(kLong * (kShort + 1) >= (kLine | 1));

/// Of a tile along one side.
int tile_extent(std::int64_t mine, std::int64_t other) {
  if (other == 1) return static_cast<int>(std::min<std::int64_t>(mine, kLine));
  if (mine <= kShort) return static_cast<int>(mine);
  return other <= kShort ? kLong : kSquare;
}

struct Item {
  const void* from;
  void* to;
  int rows, columns;            // of a matrix
  int tile_rows, tile_columns;  // of a tile that is not at an edge
  int first_tile;
};

struct Items {
  Item items[kMostItems];
  int count;
  int tiles;
};

int tiles_along(int extent, int tile) { return (extent + tile - 1) / tile; }

Items items_of(std::span<const Transposition> all) {
  Items result{};
  for (const Transposition& one : all) {
    const auto& [batch, rows, columns] = one.shape;
    if (batch * rows * columns == 0) continue;
    Item& item = result.items[result.count++];
    item = {one.from,
            one.to,
            static_cast<int>(rows),
            static_cast<int>(columns),
            tile_extent(rows, columns),
            tile_extent(columns, rows),
            result.tiles};
    result.tiles += static_cast<int>(batch) * tiles_along(item.rows, item.tile_rows) *
                    tiles_along(item.columns, item.tile_columns);
  }
  return result;
}

__device__ const Item& item_at(const Items& items, int tile) {
  int low = 0;
  for (int high = items.count; high - low > 1;) {
    const int middle = (low + high) / 2;
    (items.items[middle].first_tile <= tile ? low : high) = middle;
  }
  return items.items[low];
}

/// Where a tile is: its first element in its matrix, and what of it is within.
struct Place {
  std::int64_t matrix;  // the matrix's first element
  int row, column;
  int rows, columns;
};

__device__ Place place_of(const Item& item, int tile) {
  const int across = (item.columns + item.tile_columns - 1) / item.tile_columns;
  const int down = (item.rows + item.tile_rows - 1) / item.tile_rows;
  const int index = tile - item.first_tile;
  Place place;
  place.matrix = static_cast<std::int64_t>(index / across / down) * item.rows * item.columns;
  place.row = index / across % down * item.tile_rows;
  place.column = index % across * item.tile_columns;
  place.rows = std::min(item.tile_rows, item.rows - place.row);
  place.columns = std::min(item.tile_columns, item.columns - place.column);
  return place;
}

template <typename From, typename To>
__global__ void transpose_kernel(Items items, bool accumulate) {
  Tile& tile = block_shared<Tile>();
  for (int t = static_cast<int>(blockIdx.x); t < items.tiles; t += static_cast<int>(gridDim.x)) {
    const Item& item = item_at(items, t);
    const Place place = place_of(item, t);
    const int pitch = pitch_of(place.columns);
    const int elements = place.rows * place.columns;
    const From* from = static_cast<const From*>(item.from) + place.matrix;
    for (int i = static_cast<int>(threadIdx.x); i < elements; i += kThreads) {
      const int row = i / place.columns, column = i % place.columns;
      const auto at = static_cast<std::int64_t>(place.row + row) * item.columns;
      tile.values[row * pitch + column] = to_float(from[at + place.column + column]);
    }
    __syncthreads();
    To* to = static_cast<To*>(item.to) + place.matrix;
    for (int i = static_cast<int>(threadIdx.x); i < elements; i += kThreads) {
      const int column = i / place.rows, row = i % place.rows;
      const auto at = static_cast<std::int64_t>(place.column + column) * item.rows;
      To& target = to[at + place.row + row];
      const float value = tile.values[row * pitch + column];
      target = from_float<To>(accumulate ? to_float(target) + value : value);
    }
    __syncthreads();  // the next tile overwrites this one
  }
}

void check(const Transposition& one) {
  const auto& [batch, rows, columns] = one.shape;
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  LOCKSTEP_CHECK(batch >= 0 && rows >= 0 && columns >= 0 && batch < kMost && rows < kMost &&
                     columns < kMost && batch * rows < kMost && rows * columns < kMost,
                 "transpose: expected extents from 0 to 2^31, got ", batch, " matrices of ", rows,
                 " x ", columns);
}

}  // namespace

void transpose(const Context& context, std::span<const Transposition> all, DType from, DType to,
               bool accumulate) {
  std::for_each(all.begin(), all.end(), check);
  with_element_type(from, [&](auto source) {
    with_element_type(to, [&](auto target) {
      const auto kernel = transpose_kernel<decltype(source), decltype(target)>;
      for (std::size_t done = 0; done < all.size(); done += kMostItems) {
        const Items items =
            items_of(all.subspan(done, std::min<std::size_t>(kMostItems, all.size() - done)));
        const unsigned blocks = blocks_for(
            items.tiles, 1, std::int64_t{kBlocksPerMultiprocessor} * context.multiprocessors);
        launch(kernel, blocks, kThreads, context.stream, items, accumulate);
      }
    });
  });
}

}  // namespace lockstep::gpu
