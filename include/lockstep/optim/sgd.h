#pragma once
// SGD with momentum over the flat parameters of all replicas, sharded: an owner sums its part of
// the gradient over the ranks, updates it and writes the new weights to every replica
// (backend.sgd_update).

#include <cstdint>
#include <vector>

#include "lockstep/nn/parameter_store.h"

namespace lockstep {

struct SgdOptions {
  float lr = 0.01F;
  float momentum = 0.9F;
  float weight_decay = 1e-4F;
  float norm_weight_decay = 0.0F;  // for gamma and beta
};

/// Neighbouring parameters with equal weight decay joined; covers every parameter, in order.
std::vector<ParameterRange> parameter_ranges(const ParameterStore& store,
                                             const SgdOptions& options);

/// The part of `ranges` that `owner` of `owners` updates: [elements] cut into equal pieces at
/// multiples of 16.
std::vector<ParameterRange> owned_ranges(const std::vector<ParameterRange>& ranges,
                                         std::int64_t elements, int owner, int owners);

}  // namespace lockstep
