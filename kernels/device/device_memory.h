#pragma once
// Device memory of a backend: counted, zeroed where the Backend's contract says so, and the growing
// scratch memory of operations.

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/allocation_count.h"
#include "kernels/device/host_waits.h"
#include "kernels/device/stream.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

/// Allocates on one device. What it hands out may outlive it, and may be given back by any thread.
class DeviceMemory {
 public:
  /// `waits` and `stream`, of the device, outlive the object.
  DeviceMemory(int ordinal, HostWaits& waits, Stream stream);

  /// Aligned to 256 bytes and zeroed when it returns. Throws Error with a way out when there is no
  /// more.
  Storage allocate(std::size_t bytes);
  /// Bytes handed out and not given back yet.
  std::size_t allocated_bytes() const { return allocated_->now(); }
  std::size_t peak_allocated_bytes() const { return allocated_->peak(); }

 private:
  const int ordinal_;
  HostWaits& waits_;
  const Stream stream_;
  std::shared_ptr<AllocationCount> allocated_;  // shared with the Storages
};

/// Memory that operations of one stream share, one after another. It grows while shapes are new,
/// and waits for the stream then. What a recording of the stream uses stays: a replay will use it
/// again.
class DeviceScratch {
 public:
  /// `stream`: of the operations; outlives the object.
  DeviceScratch(DeviceMemory& memory, Stream stream) : memory_(memory), stream_(stream) {}

  /// At least this many bytes, aligned to 256, unset; valid until the next call.
  void* get(std::size_t bytes);

 private:
  DeviceMemory& memory_;
  const Stream stream_;
  Storage storage_;
  bool recorded_ = false;  // whether a recording uses storage_
  std::vector<Storage> kept_;
};

}  // namespace lockstep::gpu
