#pragma once
// Numbers in bf16: the upper half of an fp32 number, rounded to nearest, ties to even. NaNs stay
// NaNs.

#include <cstdint>
#include <cstring>
#include <utility>

#include "backend/bfloat16.h"
#include "backend/cpu/simd.h"

namespace lockstep::bf16 {

using Number = std::uint16_t;

/// Lanes of a vector here: a processor that multiplies bf16 has registers of sixteen floats.
inline constexpr std::int64_t kLanes = 16;
typedef std::uint32_t Words __attribute__((vector_size(64)));  // kLanes of 32 bits
typedef Number Halves __attribute__((vector_size(32)));        // kLanes of 16 bits

/// The rounded numbers, each in the upper half of its lane; what is in the lower half is not 0.
inline Words rounded(simd::Vec<kLanes> values) {
  Words bits;
  std::memcpy(&bits, &values, sizeof bits);
  const Words sum = bits + 0x7FFFU + ((bits >> 16) & 1U);
  const auto is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return is_nan ? (bits | 0x00400000U) : sum;
}

/// Rounds by arithmetic, on any processor.
struct AnyRounding {
  /// Lane i has number i of `low` in its lower half and that of `high` in its upper one.
  static Words pairs(simd::Vec<kLanes> low, simd::Vec<kLanes> high) {
    return (rounded(low) >> 16) | (rounded(high) & 0xFFFF0000U);
  }
  /// 2 * kLanes numbers, one after the other.
  static void store(Number* to, simd::Vec<kLanes> first, simd::Vec<kLanes> second) {
    const Halves numbers[2] = {__builtin_convertvector(rounded(first) >> 16, Halves),
                               __builtin_convertvector(rounded(second) >> 16, Halves)};
    std::memcpy(to, numbers, sizeof numbers);
  }
};

#ifdef __AVX512F__
/// By AVX512-BF16, which takes denormal numbers for zeros as its products do. In assembler, because
/// only processors that have it run this: the file that it is in is compiled for others, too.
struct Avx512Bf16Rounding {
  static Words pairs(simd::Vec<kLanes> low, simd::Vec<kLanes> high) {
    const Numbers n = both(low, high);
    const Numbers mixed =
        __builtin_shufflevector(n, n, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24,
                                9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return reinterpret_cast<Words>(mixed);
  }
  static void store(Number* to, simd::Vec<kLanes> first, simd::Vec<kLanes> second) {
    const auto numbers = both(first, second);
    std::memcpy(to, &numbers, sizeof numbers);
  }

 private:
  typedef Number Numbers __attribute__((vector_size(64)));
  static Numbers both(simd::Vec<kLanes> low, simd::Vec<kLanes> high) {
    Numbers numbers;
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(numbers) : "v"(high), "v"(low));
    return numbers;
  }
};
#endif

/// Lane i has number i of `low` in its lower half and that of `high` in its upper one.
template <class Rounding>
Words pairs(simd::Vec<kLanes> low, simd::Vec<kLanes> high) {
  return Rounding::pairs(low, high);
}
/// The same of numbers that are bf16 in memory.
template <class>
Words pairs(Halves low, Halves high) {
  return __builtin_convertvector(low, Words) | (__builtin_convertvector(high, Words) << 16);
}

/// to = the numbers of `count` values.
template <class>
void convert(const BFloat16* from, std::int64_t count, Number* to) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(Number));
}
template <class Rounding>
void convert(const float* from, std::int64_t count, Number* to) {
  using simd::load;
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    Rounding::store(to + i, load<kLanes>(from + i), load<kLanes>(from + i + kLanes));
  }
  if (i == count) return;
  alignas(64) float rest[2 * kLanes] = {};
  std::memcpy(rest, from + i, static_cast<std::size_t>(count - i) * sizeof(float));
  Number numbers[2 * kLanes];
  Rounding::store(numbers, load<kLanes>(rest), load<kLanes>(rest + kLanes));
  std::memcpy(to + i, numbers, static_cast<std::size_t>(count - i) * sizeof(Number));
}

/// Of two rows that lie kDistance apart: the lanes of the first whose index lacks that bit, or has
/// it where kUpper, and between them those of the second.
template <int kDistance, bool kUpper>
Words exchanged(Words a, Words b) {
  return [&]<int... kLane>(std::integer_sequence<int, kLane...>) {
    return __builtin_shufflevector(
        a, b,
        ((kLane & kDistance) == 0 ? kLane + (kUpper ? kDistance : 0)
                                  : kLanes + kLane - (kUpper ? 0 : kDistance))...);
  }
  (std::make_integer_sequence<int, kLanes>());
}

/// Blocks of kDistance lanes change places.
template <int kDistance>
void exchange_blocks(Words (&rows)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kDistance) != 0) continue;
    const Words a = rows[i], b = rows[i + kDistance];
    rows[i] = exchanged<kDistance, false>(a, b);
    rows[i + kDistance] = exchanged<kDistance, true>(a, b);
  }
}

/// Lane i of rows[j] and lane j of rows[i] change places.
inline void transpose(Words (&rows)[kLanes]) {
  exchange_blocks<1>(rows);
  exchange_blocks<2>(rows);
  exchange_blocks<4>(rows);
  exchange_blocks<8>(rows);
}

}  // namespace lockstep::bf16
