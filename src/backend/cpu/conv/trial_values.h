#pragma once
// Operands of convolutions that are tried before a training: timed, or compared bit by bit.

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>

#include "backend/cpu/element.h"
#include "core/rng.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Values on pages of their own, which go back to the system: the heap would keep them beside the
/// network's memory. `repeats` times the same random values, or zeros where `repeats` is 0.
class TrialValues {
 public:
  explicit TrialValues(std::int64_t count, std::int64_t repeats = 1, DType dtype = DType::kFloat32)
      : bytes_(static_cast<std::size_t>(count) * size_of(dtype)),
        pages_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (pages_ == MAP_FAILED) throw std::bad_alloc();
    madvise(pages_, bytes_, MADV_HUGEPAGE);  // as tensors are
    if (repeats == 0) return;
    const std::int64_t different = count / repeats;
    Rng rng(0, RngPurpose::kTiming, 0);
    with_element_type(dtype, [&]<typename T>(T) {
      T* values = static_cast<T*>(pages_);
      for (std::int64_t i = 0; i < different; ++i) values[i] = rng.uniform(-1.0F, 1.0F);
      for (std::int64_t i = different; i < count; i += different) {
        std::copy_n(values, std::min(different, count - i), values + i);
      }
    });
  }
  ~TrialValues() { munmap(pages_, bytes_); }
  TrialValues(const TrialValues&) = delete;
  TrialValues& operator=(const TrialValues&) = delete;

  float* floats() const { return static_cast<float*>(pages_); }
  /// A tensor of the `turn`-th of as many values.
  Tensor tensor(const Shape& shape, DType dtype, std::int64_t turn = 0) const {
    const auto bytes = static_cast<std::size_t>(turn * shape.elements()) * size_of(dtype);
    return {static_cast<std::byte*>(pages_) + bytes, shape, dtype};
  }

 private:
  const std::size_t bytes_;
  void* const pages_;
};

}  // namespace lockstep
