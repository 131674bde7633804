#pragma once
// Statistics of a GPU whose memory not all peers reach. The host's memory is reached by all of
// them: a slot that peers read has memory there, too, and they read it there, behind the event that
// says that it is written. The kernels that write slots write both, so that an exchange copies
// nothing; what other kernels have written is copied once, and not once for every peer.

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/primitives/host_slots.h"

namespace lockstep::gpu {

/// Those of one replica. Their memory on the host stays as long as the object lives.
class PinnedSlots final : public HostSlots {
 public:
  /// `ordinal`: of the device that the slots are on.
  explicit PinnedSlots(int ordinal) : ordinal_(ordinal) {}

  float* writes(const float* slot, std::int64_t floats) override;
  void forget(const void* memory) override;
  /// Returns the slot's memory on the host, as it is behind what `stream` has been given: a copy
  /// where kernels have not written all of it since it was shown last.
  const float* show(const float* slot, std::int64_t floats, Stream stream);

 private:
  struct Place {
    float* host = nullptr;
    std::int64_t floats = 0;
    std::int64_t written = 0;  // by kernels, since it was shown
  };

  /// Returns the last slot that begins at `memory` or before; null: there is none, or it ends
  /// before.
  Place* find(const float* memory, const float** begin);
  float* allocate(std::int64_t floats);

  const int ordinal_;
  std::map<const float*, Place> places_;  // by the slot's address on the device
  std::vector<PinnedMemory> blocks_;
  std::size_t used_ = 0;  // bytes of the last block
};

}  // namespace lockstep::gpu
