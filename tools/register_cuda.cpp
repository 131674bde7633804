// A source of every executable here that is built with CUDA: the programs' own code does not know
// whether it is.

#include "lockstep/cuda.h"

namespace {
[[maybe_unused]] const bool registered = (lockstep::register_cuda(), true);
}
