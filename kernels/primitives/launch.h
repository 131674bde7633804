#pragma once
// How kernels are written and started. Every kernel file includes this one and no header of CUDA,
// so that nvcc compiles it for GPUs and the C++ compiler for the emulation of the tests
// (tests/kernels/emulation), which gives the same names a meaning on the CPU. Kernels use
// threadIdx, blockIdx, blockDim, gridDim, __syncthreads, the *_sync warp operations, atomicAdd,
// __fmul_rn, increment_acq_rel, block_shared and the two of dependent launches; nothing else of
// CUDA.

#include <cstddef>
#include <cstdint>

#include "kernels/device/stream.h"

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#include "kernels/device/check_cuda.h"

namespace lockstep::gpu {

/// Memory of one T shared by the threads of a block; unset at first. The same for every call with
/// the same T in a kernel.
template <typename T>
__device__ T& block_shared() {
  __shared__ alignas(alignof(T) < 16 ? 16 : alignof(T)) unsigned char storage[sizeof(T)];
  return *reinterpret_cast<T*>(storage);
}

/// Starts kernel<<<grid, block>>>(arguments...) on `stream`. Throws Error naming the kernel's file
/// and line when the start fails. A grid without blocks starts nothing.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, Stream stream,
            const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  kernel<<<grid, block, 0, stream>>>(static_cast<Parameters>(arguments)...);
  check_cuda(cudaGetLastError(), "kernel launch");
}

/// As `launch`; where `early`, the kernel may start while the one before it in the stream ends
/// (programmatic dependent launch, sm_90 and later; in a captured stream the edge of the graph says
/// so). REQUIRES: every thread of the kernel calls wait_for_previous_kernel.
template <typename... Parameters, typename... Arguments>
void launch_dependent(bool early, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                      Stream stream, const Arguments&... arguments) {
  if (!early) return launch(kernel, grid, block, stream, arguments...);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
             "kernel launch");
}

/// *counter = *counter >= limit ? 0 : *counter + 1 at once, and what it was before. What this
/// thread has seen written is seen by those that come to the counter later.
__device__ inline unsigned increment_acq_rel(unsigned* counter, unsigned limit) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(counter)), "r"(limit)
               : "memory");
  return before;
}

/// Returns when all kernels before this one are done and what they wrote is seen. Until then a
/// kernel touches no memory but its own arguments.
__device__ inline void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// The next kernel's blocks may come to the multiprocessors, once all blocks of this one are here
/// or done. Late: while they wait they hold room that the kernels of other replicas could use.
__device__ inline void allow_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

}  // namespace lockstep::gpu

#else

#include "kernels/emulation.h"

#endif

namespace lockstep::gpu {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kWholeWarp = 0xffffffffU;

/// Blocks of `per_block` items that cover `items`, at most `limit` (kernels then take several
/// rounds; a grid's x extent may reach 2^31 - 1).
inline unsigned blocks_for(std::int64_t items, std::int64_t per_block, std::int64_t limit) {
  const std::int64_t blocks = (items + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < limit ? blocks : limit);
}

}  // namespace lockstep::gpu
