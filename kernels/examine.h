#pragma once
// What `lockstep doctor` says of CUDA.

#include <vector>

#include "lockstep/backend/examine.h"

namespace lockstep::gpu {

/// Driver, libraries, devices with their memory, and which reach one another's. Does not throw.
std::vector<Finding> examine();

}  // namespace lockstep::gpu
