#pragma once
// Orders of convolution weights: PyTorch's [out, in, taps] and the channels-last [out, taps, in]
// that some of cuDNN's engines are faster with.

#include <cstdint>

#include "kernels/operations/context.h"

namespace lockstep::gpu {

/// `batch` dense matrices, one after another.
struct Matrices {
  std::int64_t batch = 1, rows = 0, columns = 0;
};

/// Transposes each matrix: to[b][c][r] = from[b][r][c], or += with `accumulate`. The memory must
/// not overlap.
void transpose(const Context& context, const Matrices& shape, const float* from, float* to,
               bool accumulate);

}  // namespace lockstep::gpu
