#pragma once
// Sums over the samples of a batch and over the slots that hold them, with the CPU's bits.

#include <span>

#include "kernels/primitives/context.h"
#include "lockstep/backend/backend.h"

namespace lockstep::gpu {

void sum_over_batch(const Context& context, const Tensor& x, float* slot);
/// Of at most kMaxStatSlots slots (batch_norm.h).
void broadcast_sum(const Context& context, std::span<const StatSlot> slots, const Tensor& y,
                   bool accumulate);

}  // namespace lockstep::gpu
