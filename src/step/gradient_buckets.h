#pragma once
// Which gradients are summed together by all-reduces that run beside the backward pass. Parameters
// are declared in the order of their first use, and their gradients are complete in the opposite
// order: from the end of the flat gradients on, so that a bucket is one range of them.

#include <cstdint>
#include <vector>

#include "lockstep/nn/network.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {

/// A range of the flat gradients, summed in one call.
struct GradientBucket {
  std::int64_t begin = 0, end = 0;  // elements
  std::size_t ready_after = 0;      // the layer whose backward pass completes it (Network::layers)
};

/// All gradients of the network's parameters, in buckets of at least the sizes given (the last may
/// be smaller, a parameter is never cut), in the order in which a backward pass completes them.
std::vector<GradientBucket> plan_gradient_buckets(const Network& network,
                                                  const GradientExchangeOptions& options);

}  // namespace lockstep
