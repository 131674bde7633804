#pragma once
// The bias of a convolution, which cuDNN's plain convolutions leave out. A bias and its gradient
// are fp32, activations fp32, bf16 or fp16.

#include "kernels/primitives/context.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

/// y += bias [C] in every row.
void add_bias(const Context& context, const float* bias, const Tensor& y);

/// grad_bias [C] += column sums of grad_y, summed in double.
void bias_gradient(const Context& context, const Tensor& grad_y, float* grad_bias);

}  // namespace lockstep::gpu
