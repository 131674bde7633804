#pragma once
// Operands of convolutions that are tried before a training: timed, or compared bit by bit.

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>

#include "core/rng.h"

namespace lockstep {

/// Floats on pages of their own, which go back to the system: the heap would keep them beside the
/// network's memory. `repeats` times the same random values, or zeros where `repeats` is 0.
class TrialValues {
 public:
  explicit TrialValues(std::int64_t count, std::int64_t repeats = 1)
      : bytes_(static_cast<std::size_t>(count) * sizeof(float)),
        pages_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (pages_ == MAP_FAILED) throw std::bad_alloc();
    madvise(pages_, bytes_, MADV_HUGEPAGE);  // as tensors are
    if (repeats == 0) return;
    const std::int64_t different = count / repeats;
    Rng rng(0, RngPurpose::kTiming, 0);
    for (std::int64_t i = 0; i < different; ++i) data()[i] = rng.uniform(-1.0F, 1.0F);
    for (std::int64_t i = different; i < count; i += different) {
      std::copy_n(data(), std::min(different, count - i), data() + i);
    }
  }
  ~TrialValues() { munmap(pages_, bytes_); }
  TrialValues(const TrialValues&) = delete;
  TrialValues& operator=(const TrialValues&) = delete;

  float* data() const { return static_cast<float*>(pages_); }

 private:
  const std::size_t bytes_;
  void* const pages_;
};

}  // namespace lockstep
