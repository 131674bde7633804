#pragma once
// Stores past the caches. A plain store reads its cache line from memory before it changes it, so
// that an output beyond the caches costs its size twice; a streaming store of a whole line does
// not. It pays where nobody reads the output soon: what is read back at once is better left in a
// cache.

#include <cstdint>

#ifdef __AVX__
#include <immintrin.h>
#endif

#include "backend/cpu/prefetch.h"
#include "backend/cpu/vec.h"
#include "backend/operands.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Smaller outputs may be found in a second-level cache by who reads them.
inline constexpr std::size_t kStreamedBytes = 2 << 20;

/// Whether the pixels of `y` are whole cache lines of a tensor that is worth streaming.
inline bool streams(const Tensor& y) {
  const std::int64_t line = kLineBytes / static_cast<std::int64_t>(size_of(y.dtype));
  return dense_bytes(y) >= kStreamedBytes && y.shape.channels() % line == 0 &&
         y.row_stride % line == 0 && reinterpret_cast<std::uintptr_t>(y.data) % kLineBytes == 0;
}

/// One vector of a pixel of a tensor that streams(). Whoever writes the pixel writes all of it, and
/// calls finish_streams() before another thread reads. A plain store on machines without AVX.
inline void stream(float* to, vec::Floats v) {
#ifdef __AVX__
  _mm256_stream_ps(to, reinterpret_cast<__m256>(v));
#else
  vec::store(to, v);
#endif
}
inline void stream(BFloat16* to, vec::Floats v) {
#ifdef __AVX__
  _mm_stream_si128(reinterpret_cast<__m128i*>(to),
                   reinterpret_cast<__m128i>(simd::rounded<vec::kLanes>(v)));
#else
  vec::store(to, v);
#endif
}

/// What this thread has streamed comes before what it writes from here on.
inline void finish_streams() {
#ifdef __AVX__
  _mm_sfence();
#endif
}

}  // namespace lockstep
