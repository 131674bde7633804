#pragma once
// The optimizer step of one owner's shard.

#include "kernels/primitives/context.h"
#include "lockstep/backend/backend.h"

namespace lockstep::gpu {

/// At most this many ranks share a step.
inline constexpr int kMaxRanks = 64;

/// Bits as on the CPU: gradients are added in rank order from 0 on, or as the joins say, and the
/// elements of formulas.h say where products and sums are fused. With joins or squares of blocks
/// any number of gradients.
void optimizer_update(const Context& context, const OptimizerShard& shard);

}  // namespace lockstep::gpu
