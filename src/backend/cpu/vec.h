#pragma once
// Eight channels at a time, in the vectors of simd.h: for loops that the compiler does not
// vectorise well by itself, because they mix floats with bytes or because rows are shorter than the
// vectors it would choose.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "backend/bfloat16.h"
#include "backend/cpu/simd.h"

namespace lockstep::vec {

inline constexpr std::int64_t kLanes = 8;
using Floats = simd::Vec8;
typedef std::int32_t Ints __attribute__((vector_size(32)));
using Halves = simd::Halves<kLanes>;
typedef std::uint8_t Bytes __attribute__((vector_size(8)));

inline Floats load(const float* from) { return simd::load<kLanes>(from); }
inline void store(float* to, Floats v) { simd::store<kLanes>(to, v); }
inline Floats broadcast(float value) { return value - Floats{}; }

/// The first `count` lanes; zeros in the others.
inline Floats load(const float* from, std::int64_t count) {
  return count == kLanes ? load(from) : simd::load_partial<kLanes>(from, count);
}
inline void store(float* to, Floats v, std::int64_t count) {
  if (count == kLanes) return store(to, v);
  simd::store_partial<kLanes>(to, v, count);
}
inline Floats load(const BFloat16* from, std::int64_t count = kLanes) {
  return count == kLanes ? simd::load<kLanes>(from) : simd::load_partial<kLanes>(from, count);
}
inline void store(BFloat16* to, Floats v, std::int64_t count = kLanes) {
  if (count == kLanes) return simd::store<kLanes>(to, v);
  simd::store_partial<kLanes>(to, v, count);
}
inline Ints load_bytes(const std::uint8_t* from, std::int64_t count) {
  Bytes bytes{};
  std::memcpy(&bytes, from, static_cast<std::size_t>(count));
  // In two steps: GCC 12 makes the one from bytes to integers lane by lane.
  return __builtin_convertvector(__builtin_convertvector(bytes, Halves), Ints);
}
/// The lowest byte of the first `count` lanes.
inline void store_bytes(std::uint8_t* to, Ints v, std::int64_t count) {
  const Bytes bytes = __builtin_convertvector(__builtin_convertvector(v, Halves), Bytes);
  std::memcpy(to, &bytes, static_cast<std::size_t>(count));
}
/// The first `count` lanes; zeros in the others.
inline Ints load_labels(const std::uint16_t* from, std::int64_t count) {
  Halves labels{};
  std::memcpy(&labels, from, static_cast<std::size_t>(count) * sizeof *from);
  return __builtin_convertvector(labels, Ints);
}

/// a * b + c, fused: left to themselves compilers fuse in one loop and not in the next.
inline Floats fma(Floats a, Floats b, Floats c) {
  float factors[2][kLanes];
  float sums[kLanes];
  std::memcpy(factors[0], &a, sizeof a);
  std::memcpy(factors[1], &b, sizeof b);
  std::memcpy(sums, &c, sizeof c);
#pragma omp simd
  for (std::int64_t i = 0; i < kLanes; ++i) {
    sums[i] = std::fma(factors[0][i], factors[1][i], sums[i]);
  }
  std::memcpy(&c, sums, sizeof c);
  return c;
}

/// Calls body(c, lanes) for channels [c, c + lanes); `lanes` is the constant kLanes for all but the
/// last ones.
template <typename Body>
[[gnu::always_inline]] inline void for_each_lanes(std::int64_t channels, const Body& body) {
  std::int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) body(c, kLanes);
  if (c < channels) body(c, channels - c);
}

}  // namespace lockstep::vec
