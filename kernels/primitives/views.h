#pragma once
// Tensors as kernels take them: rows of channels, and images of pixels. For .cu files only.

#include <cstdint>

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
};

struct Pixel {
  std::int64_t sample, y, x;
};

/// The pixels of a batch of images.
template <typename T>
struct Images {
  Rows<T> rows;
  std::int64_t height, width;

  explicit Images(const Tensor& tensor)
      : rows(tensor), height(tensor.shape.height()), width(tensor.shape.width()) {}

  /// Channel 0 of a pixel.
  __device__ T* at(std::int64_t sample, std::int64_t y, std::int64_t x) const {
    return rows.row((sample * height + y) * width + x);
  }
  /// Where the row of this number lies.
  __device__ Pixel pixel(std::int64_t row) const {
    const std::int64_t line = row / width;
    const std::int64_t sample = line / height;
    return {sample, line - sample * height, row - line * width};
  }
};

}  // namespace lockstep::gpu
