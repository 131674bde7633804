#pragma once
// What replicas hand in to be added up, as a kernel takes it. For .cu files only.

#include <cstdint>
#include <span>

#include "backend/formulas.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/primitives/launch.h"
#include "lockstep/core/check.h"

namespace lockstep::gpu {

/// The slots of all ranks, in their order. Throws Error when there are more than kMaxStatSlots.
struct SlotSums {
  const float* data[kMaxStatSlots] = {};  // [parts, 2, elements] each
  std::int32_t parts[kMaxStatSlots] = {};
  int count = 0;

  SlotSums(const char* operation, std::span<const StatSlot> slots) {
    LOCKSTEP_CHECK(slots.size() <= kMaxStatSlots, operation, ": at most ", kMaxStatSlots,
                   " slots can be added up on a GPU, got ", slots.size());
    for (const StatSlot& slot : slots) {
      data[count] = slot.data;
      parts[count++] = static_cast<std::int32_t>(slot.parts);
    }
  }

  __device__ double sum(std::int32_t element, std::int32_t elements) const {
    double total = 0;
    for (int s = 0; s < count; ++s) {
      const float* slot = data[s];
      for (std::int32_t part = 0; part < parts[s]; ++part, slot += 2 * std::int64_t{elements}) {
        total += split_sum(slot, element, elements);
      }
    }
    return total;
  }
};

}  // namespace lockstep::gpu
