#pragma once
// Bilinear interpolation of fp32, bf16 or fp16, one type within a call. Bits as on the CPU; with
// aligned corners, weights may differ from the CPU's by their rounding (a compiler may fuse the
// position's product with what follows).

#include "kernels/primitives/context.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

void upsample_bilinear_forward(const Context& context, const Tensor& x, const Tensor& y,
                               bool align_corners);
void upsample_bilinear_backward(const Context& context, const Tensor& grad_y, const Tensor& grad_x,
                                bool align_corners, bool accumulate);

}  // namespace lockstep::gpu
