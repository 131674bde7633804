#pragma once
// SGD with momentum over the flat parameters of all replicas, sharded: the owner of a range sums
// its gradient over the ranks, updates it and writes the new weights to every replica
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

/// A range of the flat parameters with one weight decay.
struct ParameterRange {
  std::int64_t begin = 0, end = 0;
  float weight_decay = 0;
};

/// Neighbouring parameters with equal weight decay joined; covers every parameter, in order.
std::vector<ParameterRange> parameter_ranges(const ParameterStore& store,
                                             const SgdOptions& options);

/// The part of `ranges` that `owner` of `owners` updates: [elements] cut into equal pieces at
/// multiples of 16.
std::vector<ParameterRange> owned_ranges(const std::vector<ParameterRange>& ranges,
                                         std::int64_t elements, int owner, int owners);

}  // namespace lockstep
