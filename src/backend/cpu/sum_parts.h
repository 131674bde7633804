#pragma once
// The sum of gradients of several parts of a batch, in the order that OptimizerShard::joins says.

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/image_tree.h"
#include "lockstep/backend/backend.h"

namespace lockstep {

/// Sums that wait for others while parts are added, at most: enough for 2^15 parts.
constexpr int kMaxWaitingSums = 16;

/// The sum of all parts' elements [begin, begin + count), in sums[0]. A block of kNormBlock
/// elements is small enough for the first cache with all sums in flight, and long enough for vector
/// loops.
inline void sum_parts(std::span<const float* const> parts, std::span<const int> joins_of,
                      std::int64_t begin, std::int64_t count, float (*sums)[kNormBlock]) {
  int waiting = 0;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const float* values = parts[part] + begin;
    int joins = joins_of.empty() ? static_cast<int>(part > 0) : joins_of[part];
    if (joins == 0) {
      std::copy_n(values, count, sums[waiting++]);
      continue;
    }
    add_values(values, count, sums[waiting - 1]);
    for (; --joins > 0; --waiting) add_values(sums[waiting - 1], count, sums[waiting - 2]);
  }
}

}  // namespace lockstep
