#pragma once
// What follows when every thread has reduced its rows (channel_slabs.h). First the block folds its
// row lanes pairwise. Then it writes two values per channel to global memory, and the block of the
// slab that happens to finish last adds up those of all chunks, in their order, without losing what
// is small (compensated_sum.h). So one kernel does the whole reduction, and its bits do not depend
// on which block that is.

#include <algorithm>
#include <cstdint>

#include "kernels/primitives/channel_slabs.h"
#include "kernels/primitives/compensated_sum.h"
#include "kernels/primitives/context.h"
#include "kernels/primitives/launch.h"
#include "kernels/primitives/ordered_sum.h"

namespace lockstep::gpu {

/// merge(a, b) takes the result of thread b into that of thread a, in shared memory, until row lane
/// 0 holds everything. What a thread wrote before is seen. Every thread calls it.
template <typename Merge>
__device__ void fold_row_lanes(const ChannelSlabs& slabs, const SlabThread& thread,
                               const Merge& merge) {
  for (int live = slabs.row_lanes; live > 1;) {
    const int half = (live + 1) / 2;
    __syncthreads();
    const int mine = static_cast<int>(threadIdx.x);
    if (thread.row_lane + half < live) merge(mine, mine + half * slabs.lanes);
    live = half;
  }
}

/// What an image has of a context's counters: one for each slab, the last for the image. With more
/// slabs than counters some share one, but then every slab is a single chunk, which counts from 0
/// to 0.
LOCKSTEP_HOST_DEVICE inline int image_counters(const ChannelSlabs& slabs) {
  return slabs.slabs < Context::kCounters ? slabs.slabs + 1 : Context::kCounters;
}
__device__ inline unsigned* slab_counter(unsigned* counters, const ChannelSlabs& slabs,
                                         const SlabThread& thread) {
  const int count = image_counters(slabs);
  return counters + thread.image * count + thread.slab % (count - 1);
}
__device__ inline unsigned* image_counter(unsigned* counters, const ChannelSlabs& slabs,
                                          int image) {
  const int count = image_counters(slabs);
  return counters + image * count + (count - 1);
}

/// take(first, count) for the `images` equal images of x, at most 256 and no more than there are
/// counters for at a time.
template <typename Take>
void for_image_launches(const Tensor& x, std::int64_t images, const Take& take) {
  const int counted = Context::kCounters / image_counters(ChannelSlabs(x, 1, 1));
  const std::int64_t most = std::min(256, counted);
  for (std::int64_t first = 0; first < images; first += most) {
    take(first, std::min(most, images - first));
  }
}

/// Two sums of one channel.
struct ChannelSums {
  CompensatedSum first, second;
};

struct ChunkSumsShared {
  static constexpr int kGroups = 16;
  ChannelSums sums[ChannelSlabs::kThreads];
};

/// partials [chunks, 2, C]: the sums over an image's chunks for the slab's channel threadIdx.x,
/// which is meaningful in the first `width(slab)` threads. `add(sums, chunk, a, b)` adds one
/// chunk's pair. Groups of threads take runs of chunks and are added up in order. Every thread
/// calls it.
template <typename Add>
__device__ ChannelSums sum_chunks(const ChannelSlabs& slabs, int slab, const float* partials,
                                  const Add& add) {
  ChunkSumsShared& shared = block_shared<ChunkSumsShared>();
  const int thread = static_cast<int>(threadIdx.x);
  const int width = slabs.width(slab);
  const int fitting = ChannelSlabs::kThreads / width;
  const int groups = fitting < ChunkSumsShared::kGroups ? fitting : ChunkSumsShared::kGroups;
  const int per_group = (slabs.chunks + groups - 1) / groups;
  const int group = thread / width;
  if (group < groups) {
    const int begin = group * per_group;
    const int end = begin + per_group < slabs.chunks ? begin + per_group : slabs.chunks;
    const float* at = partials + slabs.first_channel(slab) + thread % width;
    ChannelSums sums;
    for (int chunk = begin; chunk < end; ++chunk) {
      const float* pair = at + 2 * chunk * slabs.channels;
      add(sums, chunk, pair[0], pair[slabs.channels]);
    }
    shared.sums[thread] = sums;
  }
  __syncthreads();
  ChannelSums total;
  if (thread >= width) return total;
  for (int g = 0; g < groups; ++g) {
    total.first.add(shared.sums[g * width + thread].first);
    total.second.add(shared.sums[g * width + thread].second);
  }
  return total;
}

}  // namespace lockstep::gpu
