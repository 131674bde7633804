#pragma once
// BatchNorm's operations on a GPU (backend/backend.h says what each does). Activations may be fp32,
// bf16 or fp16, one type within a call; statistics and parameters are fp32.

#include "kernels/primitives/context.h"
#include "lockstep/backend/backend.h"

namespace lockstep::gpu {

/// Slots with rows that one call may merge. Throws Error for more: those must be merged beforehand.
inline constexpr int kMaxStatSlots = 64;

void batch_norm_moments(const Context& context, const Tensor& x, float* slot);
void batch_norm_forward(const Context& context, const BatchNormForward& arguments);
void batch_norm_inference(const Context& context, const BatchNormInference& arguments);
void batch_norm_backward_reduce(const Context& context, const BatchNormBackwardReduce& arguments);
void batch_norm_backward_apply(const Context& context, const BatchNormBackwardApply& arguments);

}  // namespace lockstep::gpu
