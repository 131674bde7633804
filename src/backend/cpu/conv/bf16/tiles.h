#pragma once
// How values come into tiles: sizes, distances and loads that are not whole vectors.

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "backend/cpu/conv/bf16/products.h"
#include "backend/cpu/simd.h"

namespace lockstep::bf16 {

using Vector = simd::Vec<kTile>;

inline constexpr std::int64_t kGroup = 2 * kTile;  // rows and columns that are multiplied at once

/// `value` as a multiple of `unit`.
inline std::int64_t up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// A distance of rows of so many numbers (a multiple of kDepth) such that sixteen of them fit a
/// first-level cache at once: at that of a large power of two all would meet in few of its lines.
inline std::int64_t apart(std::int64_t numbers) {
  return numbers % (32 * kDepth) == 0 ? numbers + kDepth : numbers;
}

/// Numbers in the place of so many floats.
inline std::int64_t floats_of(std::int64_t numbers) { return up(numbers, 2 * kTile) / 2; }

/// Numbers from the `channel`-th of `channels` of a pixel, at most kTile of them; zeros in the
/// other lanes, and where the pixel is null.
inline Halves load_pixel(const Number* pixel, std::int64_t channel, std::int64_t channels) {
  Halves numbers{};
  if (pixel == nullptr) return numbers;
  const std::int64_t count = std::min(channels - channel, kTile);
  std::memcpy(&numbers, pixel + channel, static_cast<std::size_t>(count) * sizeof(Number));
  return numbers;
}

/// `count` values that lie `stride` apart, at most kTile of them; zeros in the other lanes.
inline Vector load_apart(const float* from, std::int64_t stride, std::int64_t count) {
  if (stride == 1) {
    return count >= kTile ? simd::load<kTile>(from) : simd::load_partial<kTile>(from, count);
  }
#ifdef __AVX512F__
  if (count >= kTile) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(stride)));
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), 0xFFFF, at, from, sizeof(float));
  }
#endif
  alignas(64) float values[kTile] = {};
  for (std::int64_t i = 0; i < std::min(count, kTile); ++i) values[i] = from[i * stride];
  return simd::load<kTile>(values);
}

}  // namespace lockstep::bf16
