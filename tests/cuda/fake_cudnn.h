#pragma once
// What the fake cuDNN tells of itself.

namespace lockstep::fake_cudnn {

/// How often the second of its two good engines has run, which it has for convolutions to six
/// channels. The clock prefers the first.
int runs_of_the_other_engine();

}  // namespace lockstep::fake_cudnn
