#pragma once
// What operations make of the shapes of their operands, on every device.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Bytes of the elements of a dense tensor.
inline std::size_t dense_bytes(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.shape.elements()) * size_of(tensor.dtype);
}

/// `bytes` of device memory, for a copy.
inline Tensor bytes_tensor(void* data, std::size_t bytes) {
  return {data, Shape{1, static_cast<std::int64_t>(bytes)}, DType::kUInt8};
}

/// An image of a batch; null of a null tensor.
inline Tensor image_of(const Tensor& tensor, std::int64_t image) {
  return tensor ? tensor.sample_range(image, 1) : tensor;
}

/// Images whose channels are normalised in so many equal groups.
struct GroupShape {
  std::int64_t images, rows, channels, width;  // `rows` of an image, `width` of a group

  GroupShape(const Shape& shape, std::int64_t groups)
      : images(shape.batch()),
        rows(shape.rows_per_sample()),
        channels(shape.channels()),
        width(channels / groups) {}
};

inline constexpr std::int64_t kMaxClasses =
    4096;  // eight pixels of them fit on a stack, one on a GPU's tile

/// How the rows of an operand that is met again and again relate to those that meet it.
struct Repetition {
  std::int64_t rows_each = 1;  // consecutive ones that meet the same row
  bool one_channel = false;    // which all channels meet
};

/// Returns how an operand of shape b is repeated to fit one of shape a
/// (ActivationOperations::binary_forward); none where they do not fit.
inline std::optional<Repetition> find_repetition(const Shape& a, const Shape& b) {
  const bool one_channel = b.channels() == 1 && a.channels() != 1;
  if (!one_channel && b.channels() != a.channels()) return std::nullopt;
  if (b.with_channels(a.channels()) == a) return Repetition{1, one_channel};
  if (b.rows() == b.batch() && b.batch() == a.batch()) {
    return Repetition{a.rows_per_sample(), one_channel};
  }
  if (b.rows() == 1) return Repetition{a.rows(), one_channel};
  return std::nullopt;
}

}  // namespace lockstep
