#pragma once
// Copies to the host by way of pinned memory: one from pageable memory would make the host wait for
// all that the stream has been given.

#include <vector>

#include "kernels/device/device.h"
#include "lockstep/backend/backend.h"

namespace lockstep::gpu {

/// Owned by the run, beside the backend whose stream it uses.
class PinnedReadback final : public Readback {
 public:
  PinnedReadback(int ordinal, Stream stream, const Tensor& source, int slots);
  /// Waits for the stream, which may still write to the slots.
  ~PinnedReadback() override;

  void start(int slot) override;
  const void* wait(int slot) override;

 private:
  struct Slot {
    PinnedMemory memory;
    Event copied;
  };
  Slot& at(int slot) { return slots_.at(static_cast<std::size_t>(slot)); }

  const int ordinal_;
  const Stream stream_;
  const Tensor source_;
  std::vector<Slot> slots_;
};

}  // namespace lockstep::gpu
