#pragma once
// Bytes of device memory that a backend has handed out: shared with the release functions of its
// Storages, which may outlive it and run on any thread. And what is said where there are no more.

#include <atomic>
#include <cstddef>

#include "core/memory.h"
#include "lockstep/core/device.h"

namespace lockstep {

class AllocationCount {
 public:
  /// On the backend's thread.
  void add(std::size_t bytes) {
    const std::size_t sum = now_.fetch_add(bytes) + bytes;
    if (sum > peak_) peak_ = sum;
  }
  void remove(std::size_t bytes) { now_ -= bytes; }

  std::size_t now() const { return now_; }
  std::size_t peak() const { return peak_; }

 private:
  std::atomic<std::size_t> now_{0}, peak_{0};
};

/// Throws MemoryError: there are no `bytes` of `device`'s memory beside what it has handed out.
[[noreturn]] inline void throw_no_memory(const Device& device, std::size_t bytes,
                                         const AllocationCount& allocated) {
  throw MemoryError(concat(to_string(device), ": no memory for ", bytes, " bytes beside the ",
                           allocated.now(), " of this replica; ", kMemoryAdvice));
}

}  // namespace lockstep
