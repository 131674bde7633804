#pragma once
// Numbers without a meaning, for operands of what is timed.

#include <cstdint>

#include "kernels/primitives/context.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

/// Sets a dense tensor of fp32, bf16 or fp16 to numbers in [-1, 1), a function of `seed` and the
/// element's place only. Throws Error for other tensors.
void fill_random(const Context& context, const Tensor& tensor, std::uint64_t seed);

}  // namespace lockstep::gpu
