#pragma once
// Which parameters are updated alike, and who updates them. The update is sharded: an owner sums
// its share of the gradient over the ranks, updates it and writes the new weights to every replica
// (OptimizerOperations::optimizer_update).

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/nn/parameter_store.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/sync/world.h"

namespace lockstep {

/// Whether a parameter's group says so (ParameterGroup::frozen).
bool is_frozen(const std::string& name, std::span<const ParameterGroup> groups);

/// Neighbouring parameters that are updated alike joined; covers every parameter that is not
/// frozen, in order. Of several groups the one with the longest prefix that fits a parameter has
/// it. Throws ConfigError for a prefix that fits none.
std::vector<ParameterRange> parameter_ranges(const ParameterStore& store,
                                             const Optimizer& optimizer,
                                             std::span<const ParameterGroup> groups = {});

/// Elements of the flat parameters.
struct ElementRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

inline std::span<float> part_of(std::span<float> values, const ElementRange& range) {
  return values.subspan(static_cast<std::size_t>(range.begin),
                        static_cast<std::size_t>(range.size()));
}

/// The elements that `owner` of `owners` updates.
ElementRange owned_range(std::int64_t elements, int owner, int owners);
/// Those that all ranks of a process update, as owners.
ElementRange owned_by_process(std::int64_t elements, int process, const RankLayout& layout);

/// The share of `ranges` that `owner` of `owners` updates: [elements] cut into equal pieces at
/// multiples of kNormBlock.
std::vector<ParameterRange> owned_ranges(const std::vector<ParameterRange>& ranges,
                                         std::int64_t elements, int owner, int owners);

}  // namespace lockstep
