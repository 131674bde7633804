#pragma once
// Max- and average-pooling of fp32, bf16 or fp16, one type within a call. Bits and winners as on
// the CPU.

#include "kernels/primitives/context.h"
#include "lockstep/backend/conv_geometry.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

void max_pool_forward(const Context& context, const PoolGeometry& geometry, const Tensor& x,
                      const Tensor& y, const Tensor& winners);
void max_pool_backward(const Context& context, const PoolGeometry& geometry, const Tensor& winners,
                       const Tensor& grad_y, const Tensor& grad_x, bool accumulate);
void avg_pool_forward(const Context& context, const PoolGeometry& geometry, const Tensor& x,
                      const Tensor& y);
void avg_pool_backward(const Context& context, const PoolGeometry& geometry, const Tensor& grad_y,
                       const Tensor& grad_x, bool accumulate);
void adaptive_avg_pool_forward(const Context& context, const Tensor& x, const Tensor& y);
void adaptive_avg_pool_backward(const Context& context, const Tensor& grad_y, const Tensor& grad_x,
                                bool accumulate);

}  // namespace lockstep::gpu
