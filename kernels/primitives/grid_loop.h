#pragma once
// The loop that most kernels are: the threads of the grid take its items in turn, so that
// neighbours take neighbouring ones. For .cu files only.

#include <cstdint>

#include "kernels/primitives/context.h"
#include "kernels/primitives/launch.h"

namespace lockstep::gpu {

inline constexpr unsigned kLoopThreads = 256;  // of a block

/// The first of a thread's items, and from one to the next.
__device__ inline std::int64_t first_item() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t item_stride() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

/// body(i) for the calling thread's items of at most kMaxItems. Unsigned inside: a step may lead
/// past 2^31.
template <typename Body>
__device__ void for_each_item(std::int32_t items, const Body& body) {
  const std::uint32_t stride = gridDim.x * blockDim.x;
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
       i < static_cast<std::uint32_t>(items); i += stride) {
    body(static_cast<std::int32_t>(i));
  }
}

/// Starts a kernel that loops over `items`, with as many blocks as run at the same time, at most.
template <typename... Parameters, typename... Arguments>
void launch_loop(const Context& context, std::int64_t items, void (*kernel)(Parameters...),
                 const Arguments&... arguments) {
  const unsigned blocks =
      blocks_for(items, kLoopThreads, std::int64_t{8} * context.multiprocessors);
  launch(kernel, blocks, kLoopThreads, context.stream, arguments...);
}

template <typename Function>
__global__ void for_each_kernel(std::int32_t items, Function function) {
  for_each_item(items, function);
}

/// Starts function(i) for i = 0, ..., items - 1: what is done element by element, where no order
/// can matter. A Function is copied to the device.
template <typename Function>
void for_each(const Context& context, std::int32_t items, const Function& function) {
  launch_loop(context, items, for_each_kernel<Function>, items, function);
}

}  // namespace lockstep::gpu
