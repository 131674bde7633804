#pragma once
// How a kernel hands in statistics: a slot is written to device memory, and where a peer cannot
// reach that also to the host (kernels/primitives/host_slots.h).

#include <cstdint>

#include "kernels/primitives/context.h"
#include "kernels/primitives/launch.h"

namespace lockstep::gpu {

/// Where the next kernel writes the slot [2, C] for peers; null: nowhere. Every launch that writes
/// a slot asks for it, once.
inline float* host_slot_of(const Context& context, const float* slot, std::int64_t channels) {
  return context.host_slots == nullptr ? nullptr : context.host_slots->writes(slot, 2 * channels);
}

/// A channel's two values.
__device__ inline void write_slot(float* slot, float* host_slot, std::int64_t channel,
                                  std::int64_t channels, float first, float second) {
  slot[channel] = first;
  slot[channels + channel] = second;
  if (host_slot == nullptr) return;
  host_slot[channel] = first;
  host_slot[channels + channel] = second;
}

}  // namespace lockstep::gpu
