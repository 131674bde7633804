#pragma once
// Vectors of sixteen numbers in bf16, which are rounded as a BFloat16 is.

#include <cstdint>
#include <cstring>
#include <utility>

#include "backend/cpu/simd.h"
#include "backend/cpu/vec.h"

namespace lockstep::bf16 {

using Number = std::uint16_t;

/// Lanes of a vector here: a processor that multiplies bf16 has registers of sixteen floats.
inline constexpr std::int64_t kLanes = 16;
typedef std::uint32_t Words __attribute__((vector_size(64)));  // kLanes of 32 bits
typedef Number Halves __attribute__((vector_size(32)));        // kLanes of 16 bits

/// The nearest numbers.
inline Halves rounded(simd::Vec<kLanes> values) {
  vec::Floats parts[2];
  static_assert(sizeof parts == sizeof values);
  std::memcpy(parts, &values, sizeof values);
  const vec::Halves numbers[2] = {vec::rounded(parts[0]), vec::rounded(parts[1])};
  Halves all;
  std::memcpy(&all, numbers, sizeof all);
  return all;
}

/// Lane i has number i of `low` in its lower half and that of `high` in its upper one.
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
