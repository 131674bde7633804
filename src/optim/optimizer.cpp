#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// Pieces start at cache lines: neighbouring owners write the same replicas' weights at the same
// time.
constexpr std::int64_t kGranule = 16;

std::int64_t piece_begin(std::int64_t elements, int owner, int owners) {
  const std::int64_t granules = (elements + kGranule - 1) / kGranule;
  return std::min(elements, kGranule * (granules * owner / owners));
}

}  // namespace

float base_learning_rate(const Optimizer& optimizer) {
  return std::visit([](const auto& any) { return any.lr; }, optimizer);
}

std::string optimizer_name(const Optimizer&) { return "sgd"; }

std::vector<std::string> optimizer_slots(const Optimizer&) { return {"momentum_buffer"}; }

std::vector<ParameterRange> parameter_ranges(const ParameterStore& store,
                                             const Optimizer& optimizer) {
  const auto [weight_decay, norm_weight_decay] = std::visit(
      [](const auto& any) { return std::pair(any.weight_decay, any.norm_weight_decay); },
      optimizer);
  std::vector<ParameterRange> ranges;
  for (const auto& parameter : store.parameters()) {
    const float decay = parameter->kind == ParameterKind::kNorm ? norm_weight_decay : weight_decay;
    const std::int64_t end = parameter->offset + parameter->elements;
    if (!ranges.empty() && ranges.back().weight_decay == decay) {
      ranges.back().end = end;
    } else {
      ranges.push_back({parameter->offset, end, decay});
    }
  }
  return ranges;
}

std::vector<ParameterRange> owned_ranges(const std::vector<ParameterRange>& ranges,
                                         std::int64_t elements, int owner, int owners) {
  LOCKSTEP_CHECK(owner >= 0 && owner < owners, "expected an owner in [0, ", owners, "), got ",
                 owner);
  const std::int64_t begin = piece_begin(elements, owner, owners);
  const std::int64_t end = piece_begin(elements, owner + 1, owners);
  std::vector<ParameterRange> owned;
  for (const ParameterRange& range : ranges) {
    const ParameterRange part{std::max(range.begin, begin), std::min(range.end, end),
                              range.weight_decay};
    if (part.begin < part.end) owned.push_back(part);
  }
  return owned;
}

}  // namespace lockstep
