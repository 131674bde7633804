#pragma once
// BatchNorm's operations on a GPU (backend/backend.h says what each does). Activations may be fp32,
// bf16 or fp16, one type within a call; statistics and parameters are fp32.

#include <cstdint>
#include <span>

#include "kernels/primitives/context.h"
#include "lockstep/backend/backend.h"

namespace lockstep::gpu {

/// Slots with rows that one call may merge. Throws Error for more: those must be merged beforehand.
inline constexpr int kMaxStatSlots = 64;

/// Whether no slot has several parts.
bool are_whole(std::span<const StatSlot> slots);
/// What the slots' parts, (mean, M2) each, come to in their order by Chan's formula: a slot of one
/// part in the context's scratch memory.
StatSlot merge_moments(const Context& context, std::span<const StatSlot> slots,
                       std::int64_t channels);
/// The same of sums, which are added in their order in double.
StatSlot merge_sums(const Context& context, std::span<const StatSlot> slots, std::int64_t channels);

/// With several parts, in all of these: a launch for each, and slots are merged by one of their
/// own.
void batch_norm_moments(const Context& context, const Tensor& x, float* slots, std::int64_t parts);
void batch_norm_forward(const Context& context, const BatchNormForward& arguments);
void batch_norm_inference(const Context& context, const BatchNormInference& arguments);
void batch_norm_backward_reduce(const Context& context, const BatchNormBackwardReduce& arguments);
void batch_norm_backward_apply(const Context& context, const BatchNormBackwardApply& arguments);

}  // namespace lockstep::gpu
