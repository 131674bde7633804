#pragma once
// What the fake cuDNN tells of itself.

namespace lockstep::fake_cudnn {

/// How often the second of its two good engines has run, which it has for convolutions to six
/// channels. The clock prefers the first.
int runs_of_the_other_engine();

/// How often it was asked which engines it has.
int times_asked();

/// What the runtime's clock says of a plan for weights in PyTorch's order, and of one for weights
/// channels-last. 1 at first.
void set_milliseconds(float out_in_taps, float out_taps_in);

/// Whether the plan that was executed last wants weights channels-last.
bool last_was_channels_last();

/// Handles that were destroyed while another device than theirs was the thread's current one.
int handles_destroyed_elsewhere();

}  // namespace lockstep::fake_cudnn
