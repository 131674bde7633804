#pragma once
// The sum of gradients of several parts of a batch, in the order that OptimizerShard::joins says.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/image_tree.h"
#include "lockstep/backend/optimizer.h"

namespace lockstep {

/// Sums that wait for others while parts are added, at most: enough for 2^15 parts.
constexpr int kMaxWaitingSums = 16;

/// Returns how many sums wait for others, at most, while so many parts are added; none where the
/// joins do not leave one sum.
inline std::optional<int> most_waiting_sums(std::span<const int> joins, std::size_t parts) {
  if (joins.empty()) return 1;
  if (joins.size() != parts) return std::nullopt;
  int waiting = 0, most = 0;
  for (const int count : joins) {
    waiting += 1 - count;
    if (count < 0 || waiting < 1) return std::nullopt;
    most = std::max(most, waiting);
  }
  return waiting == 1 ? std::optional(most) : std::nullopt;
}

/// The order of a sum of parts. take(part, sum, first): into this sum, which it begins where
/// `first`. join(sum): the one behind it is complete and becomes part of it.
template <typename Take, typename Join>
void place_parts(std::size_t parts, std::span<const int> joins_of, const Take& take,
                 const Join& join) {
  std::size_t waiting = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    int joins = joins_of.empty() ? static_cast<int>(part > 0) : joins_of[part];
    if (joins == 0) {
      take(part, waiting++, true);
      continue;
    }
    take(part, waiting - 1, false);
    for (; --joins > 0; --waiting) join(waiting - 2);
  }
}

/// The sum of all parts' elements [begin, begin + count), in sums[0]. A block of kNormBlock
/// elements is small enough for the first cache with all sums in flight, and long enough for vector
/// loops.
inline void sum_parts(std::span<const float* const> parts, std::span<const int> joins_of,
                      std::int64_t begin, std::int64_t count, float (*sums)[kNormBlock]) {
  place_parts(
      parts.size(), joins_of,
      [&](std::size_t part, std::size_t sum, bool first) {
        const float* values = parts[part] + begin;
        if (first) {
          std::copy_n(values, count, sums[sum]);
        } else {
          add_values(values, count, sums[sum]);
        }
      },
      [&](std::size_t sum) { add_values(sums[sum + 1], count, sums[sum]); });
}

}  // namespace lockstep
