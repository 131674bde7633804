#pragma once
// Sums that do not depend on the order of threads and blocks. In double: within a block by warps,
// over blocks by partial sums that the last block adds up. Who computes which partial sum is the
// kernel's choice; what belongs to it must be a function of the shapes alone. For .cu files only.

#include <cstdint>

#include "kernels/primitives/launch.h"

namespace lockstep::gpu {

/// The sum of x[n * stride] over the images n, in the tree of core/image_tree.h.
__device__ inline float sum_in_image_tree(const float* x, std::int64_t images,
                                          std::int64_t stride) {
  constexpr int kMostWaiting = 32;
  float waiting[kMostWaiting];  // for their other half; the youngest last
  int count = 0;
  for (std::int64_t n = 0; n < images; ++n) {
    float value = x[n * stride];
    // A half is complete for every one that the number of images before it ends in.
    for (std::int64_t ones = n; ones % 2 == 1; ones /= 2) value = waiting[--count] + value;
    waiting[count++] = value;
  }
  float total = waiting[--count];
  while (count > 0) total = waiting[--count] + total;
  return total;
}

struct LastBlockTicket {
  unsigned arrived;  // before this block
};

/// Whether the calling block is the last of `blocks` that arrive at `counter`. It sees everything
/// that the others wrote before. Every thread calls it. One thread's release and acquire do for the
/// whole block: the barriers order its other threads' accesses before and after (PTX ISA, memory
/// consistency model, causality order).
__device__ inline bool arrives_last(unsigned* counter, unsigned blocks) {
  LastBlockTicket& shared = block_shared<LastBlockTicket>();
  __syncthreads();
  if (threadIdx.x == 0) shared.arrived = increment_acq_rel(counter, blocks - 1);
  __syncthreads();
  return shared.arrived == blocks - 1;
}

struct WarpSums {
  double sums[32];
};

/// The sum over the warp's threads, in a tree. Every thread of it calls it.
__device__ inline double warp_sum(double mine) {
  for (int bits = kWarpSize / 2; bits > 0; bits /= 2) {
    mine += __shfl_xor_sync(kWholeWarp, mine, bits);
  }
  return mine;
}

/// The sum over the block's threads; of use in thread 0 only. Every thread calls it.
__device__ inline double block_sum(double mine) {
  WarpSums& shared = block_shared<WarpSums>();
  mine = warp_sum(mine);
  __syncthreads();  // thread 0 has read the sums of the call before
  if (threadIdx.x % kWarpSize == 0) shared.sums[threadIdx.x / kWarpSize] = mine;
  __syncthreads();
  double total = 0;
  if (threadIdx.x == 0) {
    for (unsigned warp = 0; warp < blockDim.x / kWarpSize; ++warp) total += shared.sums[warp];
  }
  return total;
}

/// *result += (sum of partials [count]) / divisor, or nothing when that is 0, by the block that
/// comes here last. Every thread of the grid calls it at its end; thread 0 of the blocks has
/// written the partials.
__device__ inline void add_partials(const double* partials, std::int64_t count, unsigned* counter,
                                    double divisor, double* result) {
  if (!arrives_last(counter, gridDim.x)) return;
  double mine = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) mine += partials[i];
  const double total = block_sum(mine);
  if (threadIdx.x == 0 && divisor != 0) *result += total / divisor;
}

}  // namespace lockstep::gpu
