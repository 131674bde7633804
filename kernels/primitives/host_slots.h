#pragma once
// Where statistics are written beside the device's own memory, for peers that cannot reach it.

#include <cstdint>

namespace lockstep::gpu {

/// Memory on the host for slots. Used by the replica's thread.
class HostSlots {
 public:
  virtual ~HostSlots() = default;

  /// Returns where the next kernel, which writes `floats` of a slot from here on, is to write them
  /// as well; null: nowhere, since peers have not been shown this memory.
  virtual float* writes(const float* slot, std::int64_t floats) = 0;
  /// Hears that the next kernel writes to this memory, and not to the host.
  virtual void forget(const void* memory) = 0;
};

}  // namespace lockstep::gpu
