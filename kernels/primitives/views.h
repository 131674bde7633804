#pragma once
// Tensors as kernels take them: rows of channels, and images of pixels. For .cu files only.

#include <cstdint>

#include "kernels/primitives/divisor.h"
#include "kernels/primitives/launch.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

/// A tensor's rows.
template <typename T>
struct Rows {
  T* data = nullptr;
  std::int64_t stride = 0;  // elements

  Rows() = default;
  explicit Rows(const Tensor& tensor)
      : data(static_cast<T*>(tensor.data)), stride(tensor.row_stride) {}

  __device__ T* row(std::int64_t i) const { return data + i * stride; }
  /// The rows from this one on.
  Rows from(std::int64_t i) const {
    Rows rest = *this;
    rest.data += i * stride;
    return rest;
  }
};

/// Rows of packs, numbered in memory order; at most kMaxItems of them (index_runs.h).
struct PackRows {
  struct Place {
    std::int32_t row, pack;
  };
  std::int32_t packs;  // of a row
  Divisor by_packs;

  explicit PackRows(std::int64_t packs_of_row)
      : packs(static_cast<std::int32_t>(packs_of_row)), by_packs(packs_of_row) {}

  __device__ Place place(std::int32_t i) const {
    const std::int32_t row = i / by_packs;
    return {row, i - row * packs};
  }
};

struct Pixel {
  std::int32_t sample, y, x;
};

/// The pixels of a batch of images, at most kMaxItems of them (index_runs.h).
template <typename T>
struct Images {
  Rows<T> rows;
  std::int32_t height, width;
  Divisor by_height, by_width;

  explicit Images(const Tensor& tensor)
      : rows(tensor),
        height(static_cast<std::int32_t>(tensor.shape.height())),
        width(static_cast<std::int32_t>(tensor.shape.width())),
        by_height(height),
        by_width(width) {}

  /// Channel 0 of a pixel.
  __device__ T* at(std::int32_t sample, std::int32_t y, std::int32_t x) const {
    return rows.row((sample * height + y) * width + x);
  }
  /// Where the row of this number lies.
  __device__ Pixel pixel(std::int32_t row) const {
    const std::int32_t line = row / by_width;
    const std::int32_t sample = line / by_height;
    return {sample, line - sample * height, row - line * width};
  }
};

}  // namespace lockstep::gpu
