#pragma once
// Fetching pixels of a strided tensor ahead of a loop. A channel range of a concatenation is a
// stream of short runs that the processor's prefetcher does not foresee: writing one is four times
// slower without this.

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Pixels that a loop looks ahead. Beyond the end of a tensor a prefetch does nothing.
inline constexpr std::int64_t kPixelsAhead = 16;
inline constexpr std::int64_t kLineFloats = 16;  // floats of a cache line

/// Fetches the pixel kPixelsAhead after `pixel`, which will be written, unless the tensor is dense.
/// Always inlined, because GCC 12 takes a function that only prefetches for one without effect and
/// drops its calls.
[[gnu::always_inline]] inline void prefetch_to_write(const Tensor& tensor, const float* pixel) {
  if (tensor.dense()) return;
  const float* ahead = pixel + kPixelsAhead * tensor.row_stride;
  for (std::int64_t c = 0; c < tensor.shape.channels(); c += kLineFloats) {
    __builtin_prefetch(ahead + c, 1);
  }
}

}  // namespace lockstep
