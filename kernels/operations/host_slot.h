#pragma once
// How a kernel hands in statistics: a slot is written to device memory, and where a peer cannot
// reach that also to the host (kernels/primitives/host_slots.h).

#include <cstdint>

#include "kernels/primitives/context.h"
#include "kernels/primitives/launch.h"

namespace lockstep::gpu {

/// Where the next kernel writes the `floats` of slots for peers; null: nowhere. Every launch that
/// writes slots asks for it, once.
inline float* host_slot_of(const Context& context, const float* slots, std::int64_t floats) {
  return context.host_slots == nullptr ? nullptr : context.host_slots->writes(slots, floats);
}

/// A channel's two values in an image's slot of slots [images, 2, C].
__device__ inline void write_slot(float* slots, float* host_slots, int image, std::int64_t channel,
                                  std::int64_t channels, float first, float second) {
  const std::int64_t at = image * 2 * channels + channel;
  slots[at] = first;
  slots[at + channels] = second;
  if (host_slots == nullptr) return;
  host_slots[at] = first;
  host_slots[at + channels] = second;
}

}  // namespace lockstep::gpu
