#pragma once
// Fetching pixels of a strided tensor ahead of a loop. A channel range of a concatenation is a
// stream of short runs that the processor's prefetcher does not foresee: reading or writing one is
// up to four times slower without this. Always inlined, because GCC 12 takes a function that only
// prefetches for one without effect and drops its calls.

#include <cstdint>

namespace lockstep {

/// Pixels that a loop looks ahead. Beyond the end of a tensor a prefetch does nothing.
inline constexpr std::int64_t kPixelsAhead = 16;
inline constexpr std::int64_t kLineBytes = 64;  // of a cache line

/// Fetches a pixel. kWrite: 1 when it will be written, 0 when it will only be read; then to the
/// second-level cache: the first one is small enough that what is fetched for later drives out what
/// is used now, and fetching to it was up to 1.6 times slower.
template <int kWrite, typename T>
[[gnu::always_inline]] inline void prefetch_pixel(const T* pixel, std::int64_t channels) {
  constexpr int kLocality = kWrite == 1 ? 3 : 2;
  constexpr std::int64_t kLine = kLineBytes / sizeof(T);
  __builtin_prefetch(pixel, kWrite, kLocality);
  for (std::int64_t c = kLine; c < channels; c += kLine) {
    __builtin_prefetch(pixel + c, kWrite, kLocality);
  }
}

/// Fetches the pixel kPixelsAhead after `pixel` unless the tensor is dense.
template <int kWrite, typename T>
[[gnu::always_inline]] inline void prefetch_ahead(const T* pixel, std::int64_t row_stride,
                                                  std::int64_t channels) {
  if (row_stride == channels) return;
  prefetch_pixel<kWrite>(pixel + kPixelsAhead * row_stride, channels);
}

template <typename T>
[[gnu::always_inline]] inline void prefetch_to_read(const T* pixel, std::int64_t row_stride,
                                                    std::int64_t channels) {
  prefetch_ahead<0>(pixel, row_stride, channels);
}

template <typename T>
[[gnu::always_inline]] inline void prefetch_to_write(const T* pixel, std::int64_t row_stride,
                                                     std::int64_t channels) {
  prefetch_ahead<1>(pixel, row_stride, channels);
}

}  // namespace lockstep
