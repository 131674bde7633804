#pragma once
// Vectors of 8 or 16 floats, in the vector extension that GCC and Clang share: registers of the
// machine where it has them (8 floats are one with AVX, two with NEON; 16 are one with AVX-512, two
// with AVX), and no intrinsics of one architecture. Products that are added contract to fused
// multiply-adds under the compilers' defaults, so sums are reproducible per build, not across
// builds.

#include <cstdint>
#include <cstring>
#include <utility>

#include "backend/bfloat16.h"

namespace lockstep::simd {

inline constexpr std::int64_t kLine = 16;  // floats of a cache line

/// Floats in the widest vector that is one register in this build: 16 with AVX-512, else 8.
inline int native_lanes() {
#ifdef __AVX512F__
  return 16;
#else
  return 8;
#endif
}

template <std::int64_t kLanes>
struct VecType {
  typedef float Type __attribute__((vector_size(kLanes * sizeof(float))));
  typedef std::uint32_t Words __attribute__((vector_size(kLanes * sizeof(std::uint32_t))));
  typedef std::uint16_t Halves __attribute__((vector_size(kLanes * sizeof(std::uint16_t))));
};
template <std::int64_t kLanes>
using Vec = typename VecType<kLanes>::Type;
using Vec8 = Vec<8>;
/// Lanes of 32 and of 16 bits.
template <std::int64_t kLanes>
using Words = typename VecType<kLanes>::Words;
template <std::int64_t kLanes>
using Halves = typename VecType<kLanes>::Halves;

template <std::int64_t kLanes>
inline Vec<kLanes> load(const float* from) {
  Vec<kLanes> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <std::int64_t kLanes>
inline void store(float* to, Vec<kLanes> v) {
  std::memcpy(to, &v, sizeof v);
}

/// The first `count` lanes from memory, zeros in the others.
template <std::int64_t kLanes>
inline Vec<kLanes> load_partial(const float* from, std::int64_t count) {
  Vec<kLanes> v{};
  std::memcpy(&v, from, static_cast<std::size_t>(count) * sizeof(float));
  return v;
}

template <std::int64_t kLanes>
inline void store_partial(float* to, Vec<kLanes> v, std::int64_t count) {
  std::memcpy(to, &v, static_cast<std::size_t>(count) * sizeof(float));
}

/// As BFloat16 is to and from a float.
template <std::int64_t kLanes>
inline Vec<kLanes> widened(Halves<kLanes> numbers) {
  const Words<kLanes> bits = __builtin_convertvector(numbers, Words<kLanes>) << 16;
  Vec<kLanes> v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}
template <std::int64_t kLanes>
inline Halves<kLanes> rounded(Vec<kLanes> v) {
  Words<kLanes> bits;
  std::memcpy(&bits, &v, sizeof bits);
  const Words<kLanes> nearest = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
  return __builtin_convertvector(v == v ? nearest : Words<kLanes>{} + 0x7fffU, Halves<kLanes>);
}

template <std::int64_t kLanes>
inline Vec<kLanes> load(const BFloat16* from) {
  Halves<kLanes> numbers;
  std::memcpy(&numbers, from, sizeof numbers);
  return widened<kLanes>(numbers);
}
template <std::int64_t kLanes>
inline void store(BFloat16* to, Vec<kLanes> v) {
  const Halves<kLanes> numbers = rounded<kLanes>(v);
  std::memcpy(to, &numbers, sizeof numbers);
}
template <std::int64_t kLanes>
inline Vec<kLanes> load_partial(const BFloat16* from, std::int64_t count) {
  Halves<kLanes> numbers{};
  std::memcpy(&numbers, from, static_cast<std::size_t>(count) * sizeof *from);
  return widened<kLanes>(numbers);
}
template <std::int64_t kLanes>
inline void store_partial(BFloat16* to, Vec<kLanes> v, std::int64_t count) {
  const Halves<kLanes> numbers = rounded<kLanes>(v);
  std::memcpy(to, &numbers, static_cast<std::size_t>(count) * sizeof *to);
}

/// Transposes the 8x8 values of eight vectors: lane i of rows[j] and lane j of rows[i] change
/// places.
inline void transpose(Vec8 (&rows)[8]) {
  Vec8 pairs[8];  // lanes of two rows interleaved
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = __builtin_shufflevector(rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[i + 1] = __builtin_shufflevector(rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  Vec8 fours[8];
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const Vec8 a = pairs[i + j];
      const Vec8 b = pairs[i + j + 2];
      fours[i + 2 * j] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
      fours[i + 2 * j + 1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = __builtin_shufflevector(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    rows[i + 4] = __builtin_shufflevector(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

/// body(0), body(1), ... body(kCount - 1), without a loop: sums indexed by constants live in
/// registers, also where the compiler deems a loop over them too long to unroll.
template <int kCount, class Body>
[[gnu::always_inline]] inline void unrolled(Body&& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
    (body(kIndex), ...);
  }
  (std::make_integer_sequence<int, kCount>());
}

}  // namespace lockstep::simd
