#pragma once
// Whether it matters how a global batch is spread over devices.

#include <string>

#include "lockstep/nn/network.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {

/// Why training on other devices, or on another number of them, comes to other bits: a clause for
/// messages, "BatchNorm is not synchronized (stem.bn)". Empty where it does not. `network`: a
/// replica's.
std::string placement_obstacle(const DataParallelOptions& options,
                               const GradientExchangeChoice& exchange, const Network& network);

}  // namespace lockstep
