#pragma once
// Thrust's loop on the host, for functions that run in Thrust's loop on a GPU. Apart from the
// emulation, whose names are those of CUDA's own headers.

#include "kernels/dispatch.h"

namespace lockstep::test {

/// thrust::for_each_n on Thrust's host system; null where the build has not found Thrust.
emulation::Loop thrust_loop();

}  // namespace lockstep::test
