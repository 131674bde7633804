#pragma once
// Orders of convolution weights: PyTorch's [out, in, taps] and the channels-last [out, taps, in]
// that cuDNN's engines are faster with.

#include <cstdint>
#include <span>

#include "kernels/primitives/context.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

/// `batch` dense matrices, one after another.
struct Matrices {
  std::int64_t batch = 1, rows = 0, columns = 0;
};

/// to[b][c][r] = from[b][r][c], or +=. The memory must not overlap.
struct Transposition {
  Matrices shape;
  const void* from = nullptr;
  void* to = nullptr;
};

/// Any number of transpositions between the same types, in one launch (64 a launch, where there are
/// more): fp32, bf16 or fp16 each, so that fp32 weights become those of a bf16 convolution.
/// Matrices of one column keep their order. Throws Error for other types, or for extents that are
/// negative or reach 2^31.
void transpose(const Context& context, std::span<const Transposition> all, DType from, DType to,
               bool accumulate);

/// One of `from` and `to`, dense tensors of that many elements, of any shape. Throws Error for
/// other tensors.
void transpose(const Context& context, const Matrices& shape, const Tensor& from, const Tensor& to,
               bool accumulate);

}  // namespace lockstep::gpu
