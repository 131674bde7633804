#pragma once
// What every backend asks of the operands that it is given.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

#include "lockstep/backend/convolutions.h"
#include "lockstep/backend/pooling.h"
#include "lockstep/core/check.h"
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

/// Throws Error unless the tensor may be uploaded or downloaded.
inline void check_transfer(const Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.data != nullptr || dense_bytes(tensor) == 0,
                 "upload and download: expected device memory for a tensor of shape ",
                 to_string(tensor.shape), ", got a null pointer");
  LOCKSTEP_CHECK(tensor.dense() || tensor.shape.rows() == 0,
                 "upload and download take dense tensors, got shape ", to_string(tensor.shape),
                 " with row stride ", tensor.row_stride);
}

/// The same, and unless there is host memory on the other side.
inline void check_transfer(const Tensor& tensor, const void* host) {
  check_transfer(tensor);
  LOCKSTEP_CHECK(host != nullptr || dense_bytes(tensor) == 0,
                 "upload and download: expected host memory of ", dense_bytes(tensor),
                 " bytes, got a null pointer");
}

/// Throws Error unless `operands` have one shape. Null ones have any: they are not there.
inline void check_same_shape(const char* operation, std::initializer_list<const Tensor*> operands) {
  const Tensor& first = **operands.begin();
  for (const Tensor* operand : operands) {
    LOCKSTEP_CHECK(!*operand || operand->shape == first.shape, operation,
                   ": expected operands of one shape, got ", to_string(first.shape), " and ",
                   to_string(operand->shape));
  }
}

/// Throws Error unless `activations` have one element type. Null ones have any.
inline void check_same_type(const char* operation,
                            std::initializer_list<const Tensor*> activations) {
  const Tensor& first = **activations.begin();
  for (const Tensor* activation : activations) {
    LOCKSTEP_CHECK(!*activation || activation->dtype == first.dtype, operation,
                   ": expected activations of one type, got ", to_string(first.dtype), " and ",
                   to_string(activation->dtype), "; `copy` converts them");
  }
}

/// Throws Error unless `activations` have one shape and one element type. Null ones have any.
inline void check_alike(const char* operation, std::initializer_list<const Tensor*> activations) {
  check_same_shape(operation, activations);
  check_same_type(operation, activations);
}

/// Rows of each of `parts` equal parts. Throws Error unless they are equal.
inline std::int64_t rows_of_part(const char* operation, std::int64_t rows, std::int64_t parts) {
  LOCKSTEP_CHECK(parts >= 1 && rows % parts == 0, operation, ": ", rows, " rows are no ", parts,
                 " equal parts");
  return rows / parts;
}

/// Images whose channels are normalised in groups of `width`.
struct GroupShape {
  std::int64_t images, rows, channels, width;  // `rows` of an image

  /// Throws Error unless the channels are so many equal groups, of two values or more.
  GroupShape(const char* operation, const Shape& shape, std::int64_t groups)
      : images(shape.batch()), rows(shape.rows_per_sample()), channels(shape.channels()), width(0) {
    LOCKSTEP_CHECK(groups >= 1 && channels % groups == 0, operation, ": ", channels,
                   " channels are no ", groups, " equal groups");
    width = channels / groups;
    LOCKSTEP_CHECK(images == 0 || rows * width >= 2, operation,
                   ": a group needs at least 2 values, got ", rows * width, " of ",
                   to_string(shape));
  }
};

/// How many sums wait for others, at most, while so many gradients are added in the order of
/// OptimizerShard::joins. Throws Error unless the joins leave one sum.
inline int check_joins(std::span<const int> joins, std::size_t grads) {
  if (joins.empty()) return 1;
  int waiting = 0;
  int most = 0;
  bool possible = joins.size() == grads;
  for (const int count : joins) {
    waiting += 1 - count;
    most = std::max(most, waiting);
    possible &= count >= 0 && waiting >= 1;
  }
  LOCKSTEP_CHECK(possible && waiting == 1,
                 "optimizer_update: the order of the sum does not fit the ", grads, " gradients");
  return most;
}

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

/// The same. Throws Error where they do not fit.
inline Repetition repetition_of(const char* operation, const Shape& a, const Shape& b) {
  const std::optional<Repetition> found = find_repetition(a, b);
  LOCKSTEP_CHECK(found.has_value(), operation, ": expected a second operand of shape ",
                 to_string(a), ", or with one channel, or with one row for each sample or for all,",
                 " got ", to_string(b));
  return *found;
}

/// Rows of a that are summed for one of grad_b (ActivationOperations::binary_backward_right).
/// Throws Error where the shapes do not fit.
inline std::int64_t rows_of_gradient(const char* operation, const Shape& a, const Shape& grad_b) {
  const Repetition repetition = repetition_of(operation, a, grad_b);
  LOCKSTEP_CHECK(grad_b.batch() == a.batch(), operation, ": the gradient has a row for each of ",
                 a.batch(), " samples, at least, got ", to_string(grad_b));
  return repetition.rows_each;
}

/// Throws Error unless `labels` fit logits of this shape.
inline void check_labels(const Shape& logits, const Tensor& labels) {
  LOCKSTEP_CHECK(labels.shape == logits.with_channels(1) && labels.dtype == DType::kUInt16,
                 "labels must be uint16 of shape ", to_string(logits.with_channels(1)), ", got ",
                 to_string(labels.shape));
  LOCKSTEP_CHECK(logits.channels() > 0 && logits.channels() <= kMaxClasses, "1 to ", kMaxClasses,
                 " classes, got ", logits.channels());
}

/// Throws Error unless `target` is what an output of this shape can be compared with.
inline void check_target(const Shape& output, const Tensor& target) {
  LOCKSTEP_CHECK(target.shape == output && target.dtype == DType::kFloat32,
                 "the target must be fp32 of the output's shape, ", to_string(output), ", got ",
                 to_string(target.dtype), " of ", to_string(target.shape));
}

/// Throws Error unless the convolution of an input of shape x gives y.
inline void check_conv2d(const ConvGeometry& geometry, const Shape& x, const Shape& y) {
  const Shape expected = geometry.output_shape(x);
  LOCKSTEP_CHECK(y == expected, "conv2d of an input ", to_string(x), " gives ", to_string(expected),
                 ", got ", to_string(y));
}

/// Throws Error unless an image of shape x can be interpolated to shape y.
inline void check_upsample(const Shape& x, const Shape& y) {
  LOCKSTEP_CHECK(
      x.rank() == 4 && y.rank() == 4 && x.batch() == y.batch() && x.channels() == y.channels(),
      "upsampling keeps batch and channels, got ", to_string(x), " and ", to_string(y));
}

/// Throws Error unless pooling an input of shape x gives y.
inline void check_pool(const PoolGeometry& geometry, const Shape& x, const Shape& y) {
  const Shape expected = geometry.output_shape(x);
  LOCKSTEP_CHECK(y == expected, "pooling an input ", to_string(x), " gives ", to_string(expected),
                 ", got ", to_string(y));
}

/// Throws Error unless an image of shape x can be pooled to shape y, in bins of one pixel or more.
inline void check_adaptive_pool(const Shape& x, const Shape& y) {
  LOCKSTEP_CHECK(
      x.rank() == 4 && y.rank() == 4 && x.batch() == y.batch() && x.channels() == y.channels(),
      "adaptive pooling keeps batch and channels, got ", to_string(x), " and ", to_string(y));
  LOCKSTEP_CHECK(x.rows_per_sample() > 0 && y.rows_per_sample() > 0,
                 "adaptive pooling expects images with pixels, got ", to_string(x), " and ",
                 to_string(y));
}

/// Throws Error unless `winners` can hold the maxima's positions of an output of shape y.
inline void check_winners(const Tensor& winners, const Shape& y) {
  LOCKSTEP_CHECK(winners.shape == y && winners.dtype == DType::kUInt8 && winners.dense(),
                 "winners must be a dense uint8 tensor of shape ", to_string(y));
}

}  // namespace lockstep
