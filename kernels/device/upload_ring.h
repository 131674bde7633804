#pragma once
// Uploads by way of pinned memory: the host copies a piece into one buffer of a ring while the GPU
// fetches others. A copy from pageable memory would make the driver do the same in smaller pieces,
// waiting for each.

#include <array>
#include <cstddef>

#include "kernels/device/device.h"

namespace lockstep::gpu {

/// Used by a replica's thread, for copies into its stream.
class UploadRing {
 public:
  explicit UploadRing(int ordinal);

  /// Copies `bytes` to the device in the order of `stream`. The source may be reused when it
  /// returns.
  void upload(void* destination, const void* source, std::size_t bytes, Stream stream);

 private:
  static constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

  struct Buffer {
    explicit Buffer(int ordinal) : memory(ordinal, kBufferBytes), fetched(ordinal) {}
    PinnedMemory memory;
    Event fetched;  // the GPU is done with what the buffer held
  };

  std::array<Buffer, 3> buffers_;
  std::size_t next_ = 0;
};

}  // namespace lockstep::gpu
