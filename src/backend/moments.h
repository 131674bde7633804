#pragma once
// Merging of BatchNorm's partial statistics, as the CPU does it: the reference that every device
// must equal bit by bit. A result that is merged again, alone, keeps its bits.

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/backend/backend.h"

namespace lockstep {

/// Rows of all slots.
std::int64_t total_count(std::span<const StatSlot> slots);

/// Merges (mean, M2) slots in order by Chan's formula, in double, and rounds once to fp32. An empty
/// slot changes nothing; a slot's parts are merged one after another. `merged` [2, C]. Returns the
/// total count; with total 0 `merged` is zeros.
std::int64_t merge_moments(std::span<const StatSlot> slots, std::int64_t channels, float* merged);

/// Adds the [2, C] of all parts of all slots in order, in double, and rounds once to fp32. Returns
/// the total count.
std::int64_t merge_sums(std::span<const StatSlot> slots, std::int64_t channels, float* merged);

/// The slot's parts merged, on the host: [2, C] = (mean, M2). Waits for the device.
std::vector<float> read_moments(Backend& backend, const StatSlot& slot, std::int64_t channels);

}  // namespace lockstep
