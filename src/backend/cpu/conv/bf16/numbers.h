#pragma once
// Numbers in bf16: the upper half of an fp32 number, rounded to nearest, ties to even. NaNs stay
// NaNs.

#include <cstdint>
#include <cstring>
#include <utility>

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

/// Lane i has number i of `low` in its lower half and that of `high` in its upper one.
inline Words pairs(simd::Vec<kLanes> low, simd::Vec<kLanes> high) {
  return (rounded(low) >> 16) | (rounded(high) & 0xFFFF0000U);
}
/// The same of numbers that are bf16 in memory.
inline Words pairs(Halves low, Halves high) {
  return __builtin_convertvector(low, Words) | (__builtin_convertvector(high, Words) << 16);
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
