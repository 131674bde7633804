#pragma once
// Loss scaling for fp16 (formulas.h has the rule). All of it stays on the device: a step whose
// gradients are not finite is left out without the host knowing, also in a replayed graph.

#include "kernels/primitives/context.h"
#include "lockstep/backend/backend.h"

namespace lockstep::gpu {

void check_gradients(const Context& context, const GradientCheck& check);
void update_loss_scale(const Context& context, const LossScaleUpdate& update);

}  // namespace lockstep::gpu
