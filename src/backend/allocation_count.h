#pragma once
// Bytes of device memory that a backend has handed out: shared with the release functions of its
// Storages, which may outlive it and run on any thread.

#include <atomic>
#include <cstddef>

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

}  // namespace lockstep
