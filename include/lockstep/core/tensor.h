#pragma once
// Storage owns memory of one device; Tensor is a view of it and never owns or copies. A tensor is
// channels-last, rows x channels with a stride between rows, so that a range of channels of a
// concatenated tensor is itself a tensor and concatenation needs no copy.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/device.h"
#include "lockstep/core/shape.h"

namespace lockstep {

/// Element types of tensors. Statistics and parameters are always kFloat32, whatever activations
/// are.
enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat16, kUInt8, kUInt16 };

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
    case DType::kUInt16:
      return 2;
    case DType::kUInt8:
      return 1;
  }
  return 0;
}

/// "fp32", "bf16", "fp16", "uint8" or "uint16".
constexpr const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "fp32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
    case DType::kUInt8:
      return "uint8";
    case DType::kUInt16:
      return "uint16";
  }
  return "?";
}

/// Owns a block of memory of one device and returns it when destroyed. Move-only; used by one
/// thread.
class Storage {
 public:
  /// Gives the memory back; called once, on the thread that destroys the storage.
  using Release = std::function<void(void*)>;

  Storage() = default;  // owns nothing
  /// Takes over `bytes` bytes at `data`.
  Storage(void* data, std::size_t bytes, Release release)
      : data_(data), bytes_(bytes), release_(std::move(release)) {}
  Storage(Storage&& other) noexcept { swap(other); }
  Storage& operator=(Storage&& other) noexcept {
    Storage(std::move(other)).swap(*this);
    return *this;
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  ~Storage() {
    if (data_ != nullptr && release_) release_(data_);
  }

  /// Null where it owns nothing.
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void swap(Storage& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
  }

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Release release_;
};

/// A view of device memory. Row r, channel c lies at data[r * row_stride + c].
struct Tensor {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::kFloat32;
  std::int64_t row_stride = 0;  // elements; shape.channels() when dense

  Tensor() = default;
  /// A dense tensor.
  Tensor(void* memory, const Shape& extents, DType type = DType::kFloat32)
      : data(memory), shape(extents), dtype(type), row_stride(extents.channels()) {}

  /// Whether there is memory behind it.
  explicit operator bool() const { return data != nullptr; }
  /// Whether rows lie one behind the other, so that all elements are one range.
  bool dense() const { return row_stride == shape.channels(); }

  // --- the elements; each throws Error when they are of another type ---
  float* floats() const {
    LOCKSTEP_CHECK(dtype == DType::kFloat32, "expected an fp32 tensor, got ", to_string(dtype));
    return static_cast<float*>(data);
  }
  std::uint8_t* bytes() const {
    LOCKSTEP_CHECK(dtype == DType::kUInt8, "expected a uint8 tensor, got ", to_string(dtype));
    return static_cast<std::uint8_t*>(data);
  }
  std::uint16_t* labels() const {
    LOCKSTEP_CHECK(dtype == DType::kUInt16, "expected a uint16 tensor, got ", to_string(dtype));
    return static_cast<std::uint16_t*>(data);
  }

  /// Channels [begin, begin + count) of every row. REQUIRES: they exist.
  Tensor channel_range(std::int64_t begin, std::int64_t count) const;
  /// Samples [begin, begin + count). REQUIRES: they exist.
  Tensor sample_range(std::int64_t begin, std::int64_t count) const;
};

/// A number of an operation that may change while everything else stays, so that a recorded step
/// can be replayed with other numbers: `value`, plus what lies at `memory` (device memory of the
/// backend; null: nothing) when the operation runs.
template <typename T>
struct DeviceScalar {
  // Implicit: operations take plain numbers, too.
  DeviceScalar(T number) : value(number) {}  // NOLINT(google-explicit-constructor)
  DeviceScalar(T number, const T* added) : value(number), memory(added) {}

  /// On the device that owns the memory.
  LOCKSTEP_HOST_DEVICE T get() const { return memory == nullptr ? value : value + *memory; }

  T value;
  const T* memory = nullptr;
};

}  // namespace lockstep
