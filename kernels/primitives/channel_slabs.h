#pragma once
// How the threads of BatchNorm's kernels lie over a tensor of rows x channels. The channels are cut
// into slabs of at most kMaxLanes packs. A block belongs to one slab: its threads take `lanes`
// packs of `row_lanes` rows that follow one another, so that a warp reads whole lines whatever the
// number of channels is. The rows are dealt out to the slab's blocks in turn ("chunks"), so that
// all blocks together sweep over the tensor from one end to the other. Images that are taken by
// themselves lie one behind another in the tensor and along the grid's y; else all is one image.
//
// A thread keeps its channels, hence their constants stay in registers. Which values a thread adds
// up is a function of the shape and the element's size only, neither of the GPU nor of the
// alignment.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/primitives/launch.h"
#include "kernels/primitives/pack.h"
#include "kernels/primitives/views.h"

namespace lockstep::gpu {

struct ChannelSlabs {
  static constexpr int kThreads = 256;
  static constexpr int kMaxLanes = 8;
  static constexpr int kMaxPack = 8;                      // elements, of 2 bytes
  static constexpr int kMaxWidth = kMaxLanes * kMaxPack;  // channels of a slab
  /// Chunks of a reduction, over all slabs: about two blocks for every multiprocessor of a large
  /// GPU.
  static constexpr std::int64_t kReductionBlocks = 256;

  std::int64_t rows = 0, channels = 0;  // rows of an image
  int images = 1;
  int pack = 1;       // elements
  int lanes = 1;      // packs of a row that a block takes
  int row_lanes = 1;  // rows that it takes at a time
  int slabs = 0;
  int chunks = 1;
  std::int64_t rounds = 0;  // rows that every row lane of every chunk has
  std::int64_t rest = 0;    // further rows, of the first lanes

  /// At most `blocks` blocks for each of the tensor's equal images, but one per slab; a thread
  /// takes `rows_at_once` rows in one go.
  ChannelSlabs(const Tensor& tensor, int rows_at_once, std::int64_t blocks,
               std::int64_t of_images = 1)
      : rows(tensor.shape.rows() / of_images),
        channels(tensor.shape.channels()),
        images(static_cast<int>(of_images)),
        pack(16 / static_cast<int>(size_of(tensor.dtype))) {
    if (channels == 0) return;
    const std::int64_t packs = (channels + pack - 1) / pack;
    slabs = static_cast<int>((packs + kMaxLanes - 1) / kMaxLanes);
    lanes = static_cast<int>((packs + slabs - 1) / slabs);
    row_lanes = kThreads / lanes;
    const std::int64_t rows_of_block = std::int64_t{row_lanes} * rows_at_once;
    const std::int64_t most = std::max<std::int64_t>(1, blocks / slabs);
    chunks = static_cast<int>(
        std::clamp<std::int64_t>((rows + rows_of_block - 1) / rows_of_block, 1, most));
    rounds = rows / row_step();
    rest = rows % row_step();
  }

  dim3 grid() const {
    return {static_cast<unsigned>(slabs) * static_cast<unsigned>(chunks),
            static_cast<unsigned>(images)};
  }

  /// Memory of two fp32 values per channel, chunk and image.
  std::size_t partial_bytes() const {
    return 2 * static_cast<std::size_t>(chunks * channels) * static_cast<std::size_t>(images) *
           sizeof(float);
  }
  /// What chunk `chunk` of an image, or the first of them, has of that memory.
  __device__ float* partial(float* partials, int image, int chunk = 0) const {
    return partials + 2 * (std::int64_t{image} * chunks + chunk) * channels;
  }

  /// Rows from one of a thread's rows to its next.
  LOCKSTEP_HOST_DEVICE std::int64_t row_step() const { return std::int64_t{chunks} * row_lanes; }
  /// Rows of a chunk.
  __device__ std::int64_t chunk_rows(int chunk) const {
    const std::int64_t further = rest - std::int64_t{chunk} * row_lanes;
    return rounds * row_lanes + (further < 0 ? 0 : further > row_lanes ? row_lanes : further);
  }
  /// First channel of a slab, and how many it has.
  __device__ std::int64_t first_channel(int slab) const {
    return std::int64_t{slab} * lanes * pack;
  }
  __device__ int width(int slab) const {
    const std::int64_t left = channels - first_channel(slab);
    const int most = lanes * pack;
    return left < most ? static_cast<int>(left) : most;
  }
};

/// The part of a tensor that the calling thread takes: of `count` rows, `first` and every
/// row_step()th after it, counted from where the sweep begins.
struct SlabThread {
  int image, slab, chunk;
  int lane, row_lane;
  std::int64_t channel;  // its first
  int valid;             // how many of its pack's channels exist
  std::int64_t first, count;

  __device__ explicit SlabThread(const ChannelSlabs& slabs)
      : image(static_cast<int>(blockIdx.y)),
        slab(static_cast<int>(blockIdx.x % static_cast<unsigned>(slabs.slabs))),
        chunk(static_cast<int>(blockIdx.x / static_cast<unsigned>(slabs.slabs))),
        lane(static_cast<int>(threadIdx.x) % slabs.lanes),
        row_lane(static_cast<int>(threadIdx.x) / slabs.lanes),
        channel(slabs.first_channel(slab) + std::int64_t{lane} * slabs.pack),
        valid(0),
        first(std::int64_t{chunk} * slabs.row_lanes + row_lane),
        count(0) {
    const std::int64_t left = slabs.channels - channel;
    if (left > 0) valid = left < slabs.pack ? static_cast<int>(left) : slabs.pack;
    if (valid > 0 && row_lane < slabs.row_lanes)
      count = slabs.rounds + (first < slabs.rest ? 1 : 0);
  }
  /// Its first channel's place in the slab.
  __device__ int column(const ChannelSlabs& slabs) const { return lane * slabs.pack; }
};

/// Walks over a tensor's rows: the address of `channel` in the thread's i-th row.
template <typename T>
struct RowWalk {
  T* address;
  std::int64_t step;  // elements

  /// From the image's first row on, or from its last one back.
  __device__ RowWalk(const Rows<T>& rows, const ChannelSlabs& slabs, const SlabThread& thread,
                     bool backwards)
      : address(nullptr), step((backwards ? -slabs.row_step() : slabs.row_step()) * rows.stride) {
    if (thread.count == 0) return;
    const std::int64_t row = backwards ? slabs.rows - 1 - thread.first : thread.first;
    address = rows.row(thread.image * slabs.rows + row) + thread.channel;
  }
  __device__ T* row(int i) const { return address + i * step; }
  __device__ void advance(int rows_taken) { address += rows_taken * step; }
};

/// take(rows, partial) for a thread's rows, kRows at a time: `partial` is std::false_type for kRows
/// rows and std::true_type for what is left at the end.
template <int kRows, typename Take>
__device__ void take_rows(std::int64_t count, const Take& take) {
  for (; count >= kRows; count -= kRows) take(kRows, std::false_type{});
  if (count > 0) take(static_cast<int>(count), std::true_type{});
}

/// Packs of rows 0 to kRows - 1 of a walk; of the first `rows` where kPartial.
template <int kRows, bool kWhole, bool kPartial, typename T>
__device__ void load_rows(const RowWalk<const T>& walk, int rows, int valid,
                          Pack<T> (&packs)[kRows]) {
  LOCKSTEP_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (!kPartial || i < rows) packs[i] = load_elements<kWhole>(walk.row(i), valid);
  }
}

}  // namespace lockstep::gpu
