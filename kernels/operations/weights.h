#pragma once
// Orders of convolution weights: PyTorch's [out, in, taps] and the channels-last [out, taps, in]
// that some of cuDNN's engines are faster with.

#include <cstdint>

#include "kernels/primitives/context.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

/// `batch` dense matrices, one after another.
struct Matrices {
  std::int64_t batch = 1, rows = 0, columns = 0;
};

/// Transposes each matrix: to[b][c][r] = from[b][r][c], or += with `accumulate`. `from` and `to`
/// are dense tensors of that many elements, of any shape, in fp32, bf16 or fp16 each: fp32 weights
/// become those of a bf16 convolution, whose gradients are added to fp32 ones. The memory must not
/// overlap. Throws Error for other tensors. Weights that keep their order: `copy` (pointwise.h).
void transpose(const Context& context, const Matrices& shape, const Tensor& from, const Tensor& to,
               bool accumulate);

}  // namespace lockstep::gpu
