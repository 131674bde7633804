#pragma once
// What is done element by element, where no order can matter: Thrust's loop over the items on a
// GPU, the emulation's in the tests. It neither waits nor allocates, and a CUDA graph records it as
// one kernel. What adds up in a fixed order has kernels of its own. For .cu files only.

#include <cstdint>

#include "kernels/primitives/context.h"
#include "kernels/primitives/launch.h"

#if defined(__CUDACC__)
#include <thrust/execution_policy.h>
#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/system_error.h>
#endif

namespace lockstep::gpu {

/// Starts function(i) for i = 0, ..., items - 1 on the context's stream. A Function is copied to
/// the device; neighbouring threads take neighbouring items. Throws Error when the start fails.
template <typename Function>
void for_each(const Context& context, std::int32_t items, const Function& function) {
#if defined(__CUDACC__)
  try {
    thrust::for_each_n(thrust::cuda::par_nosync.on(context.stream),
                       thrust::counting_iterator<std::int32_t>(0), items, function);
  } catch (const thrust::system_error& error) {
    throw Error(concat("thrust::for_each_n: ", error.what()));
  }
#else
  emulation::for_each(context.stream, items, function);
#endif
}

}  // namespace lockstep::gpu
