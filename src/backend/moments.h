#pragma once
// Merging of BatchNorm's partial statistics, as the CPU does it: the reference that every device
// must equal bit by bit. A result that is merged again, alone, keeps its bits.

#include <cstdint>
#include <span>

#include "lockstep/backend/backend.h"

namespace lockstep {

/// Merges (mean, M2) slots in order by Chan's formula, in double, and rounds once to fp32. An empty
/// slot changes nothing. `merged` [2, C]. Returns the total count; with total 0 `merged` is zeros.
std::int64_t merge_moments(std::span<const StatSlot> slots, std::int64_t channels, float* merged);

/// Adds [2, C] slots in order, in double, and rounds once to fp32. Returns the total count.
std::int64_t merge_sums(std::span<const StatSlot> slots, std::int64_t channels, float* merged);

}  // namespace lockstep
