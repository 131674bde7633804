#pragma once
// What BatchNorm's forward and backward kernels know of a channel: the slots that replicas hand in,
// and the constants of y = (x - mean) * scale + shift. Both directions take these from the same
// fp32 values by the same expressions, so that the backward pass recomputes y's sign exactly.

#include <cstdint>
#include <span>

#include "kernels/operations/batch_norm.h"
#include "kernels/primitives/channel_slabs.h"
#include "lockstep/backend/operand_checks.h"

namespace lockstep::gpu {

/// The slots that have rows, as a kernel takes them: by value.
struct SlotTable {
  int size = 0;
  std::int64_t count = 0;  // of all
  std::int64_t counts[kMaxStatSlots] = {};
  const float* data[kMaxStatSlots] = {};  // [2, C] each

  explicit SlotTable(std::span<const StatSlot> slots) {
    for (const StatSlot& slot : slots) {
      if (slot.count == 0) continue;
      LOCKSTEP_CHECK(size < kMaxStatSlots, "batch_norm: at most ", kMaxStatSlots,
                     " slots with rows can be merged on a GPU, got more of ", slots.size(),
                     "; merge them beforehand (transport host)");
      counts[size] = slot.count;
      data[size] = slot.data;
      count += slot.count;
      ++size;
    }
  }
};

struct ChannelConstants {
  float mean, scale, shift;
};

__device__ inline ChannelConstants channel_constants(const AffineParameters& affine,
                                                     std::int64_t channel, float mean,
                                                     float invstd) {
  return {mean, affine.weight != nullptr ? affine.weight[channel] * invstd : invstd,
          affine.bias != nullptr ? affine.bias[channel] : 0.0F};
}

/// The constants of a thread's channels, in registers.
template <int kPack>
struct PackConstants {
  float mean[kPack], scale[kPack], shift[kPack];
};

}  // namespace lockstep::gpu
