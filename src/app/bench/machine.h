#pragma once
// What the machine can do at the most, as the yardstick of what the program does.

#include <cstdint>

#include "lockstep/backend/backend.h"

namespace lockstep {

/// Of a tensor on the host: several times the last cache, so that nothing is left of one tensor
/// when the next is done.
std::int64_t beyond_caches_bytes();

/// Between two tensors, so that they do not lie an exact power of two apart: caches and prefetchers
/// then take their lines for one another's (a third less bandwidth was seen), an accident of a
/// benchmark's sizes.
inline constexpr std::int64_t kGapBytes = 2129920;

/// to = from by all threads of the only device (CPU) or by the device's own copy; equal dense
/// tensors.
void copy_tensor(Backend& backend, const Tensor& from, const Tensor& to);

/// Bytes per second, read and written, of copies of a tensor beyond the caches: the median of a
/// few.
double copy_bandwidth(Backend& backend);

/// Multiplications and additions per second of `threads` host threads that do nothing but fused
/// multiply-adds in registers: the best of a few runs.
double peak_flops(int threads);

}  // namespace lockstep
