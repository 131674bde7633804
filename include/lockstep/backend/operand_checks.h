#pragma once
// What every backend asks of the operands that it is given.

#include <cstddef>

#include "lockstep/backend/conv_geometry.h"
#include "lockstep/core/check.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Bytes of the elements of a dense tensor.
inline std::size_t dense_bytes(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.shape.elements()) * size_of(tensor.dtype);
}

/// Throws Error unless the tensor may be uploaded or downloaded.
inline void check_transfer(const Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.dense() || tensor.shape.rows() == 0,
                 "upload and download take dense tensors, got shape ", to_string(tensor.shape),
                 " with row stride ", tensor.row_stride);
}

/// Throws Error unless pooling an input of shape x gives y.
inline void check_pool(const PoolGeometry& geometry, const Shape& x, const Shape& y) {
  const Shape expected = geometry.output_shape(x);
  LOCKSTEP_CHECK(y == expected, "pooling an input ", to_string(x), " gives ", to_string(expected),
                 ", got ", to_string(y));
}

/// Throws Error unless `winners` can hold the maxima's positions of an output of shape y.
inline void check_winners(const Tensor& winners, const Shape& y) {
  LOCKSTEP_CHECK(winners.shape == y && winners.dtype == DType::kUInt8 && winners.dense(),
                 "winners must be a dense uint8 tensor of shape ", to_string(y));
}

}  // namespace lockstep
