#pragma once
// The order of an epoch, a function of (seed, epoch) only.

#include <cstdint>
#include <vector>

namespace lockstep {

/// Fills `order` with 0..count-1: a Fisher-Yates permutation drawn from (seed, epoch), or as they
/// are without `shuffle`. Reuses the vector's memory. REQUIRES: count < 2^32.
void epoch_order(std::int64_t count, bool shuffle, std::uint64_t seed, std::int64_t epoch,
                 std::vector<std::int64_t>& order);

}  // namespace lockstep
