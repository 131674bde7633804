#include "step/parameter_ranges.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// A block of the norm has one owner. So has a cache line, because neighbouring owners write
// the same replicas' weights at the same time.
constexpr std::int64_t kGranule = kNormBlock;

bool fits(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  return prefix.empty() || prefix.ends_with('.') || name.size() == prefix.size() ||
         name[prefix.size()] == '.';
}

/// Null: none.
const ParameterGroup* group_of(const std::string& name, std::span<const ParameterGroup> groups) {
  const ParameterGroup* best = nullptr;
  for (const ParameterGroup& group : groups) {
    if (!fits(name, group.prefix)) continue;
    if (best == nullptr || group.prefix.size() > best->prefix.size()) best = &group;
  }
  return best;
}

void check_prefixes(const ParameterStore& store, std::span<const ParameterGroup> groups) {
  const auto parameters = store.parameters();
  for (const ParameterGroup& group : groups) {
    const bool found =
        std::any_of(parameters.begin(), parameters.end(),
                    [&](const auto& parameter) { return fits(parameter->name, group.prefix); });
    if (found) continue;
    const std::string first = parameters.empty() ? "none" : parameters.front()->name;
    throw ConfigError(concat("the parameter group \"", group.prefix, "\" fits no parameter of the ",
                             "model, whose first is ", first,
                             "; give the beginning of a name, up to one of its dots"));
  }
}

}  // namespace

std::vector<ParameterRange> parameter_ranges(const ParameterStore& store,
                                             const Optimizer& optimizer,
                                             std::span<const ParameterGroup> groups) {
  check_prefixes(store, groups);
  const auto [weight_decay, norm_weight_decay] =
      std::visit([](const auto& any) { return std::pair(any.weight_decay, any.norm_weight_decay); },
                 optimizer);
  std::vector<ParameterRange> ranges;
  for (const auto& parameter : store.parameters()) {
    const ParameterGroup* group = group_of(parameter->name, groups);
    const float by_kind =
        parameter->kind == ParameterKind::kNorm ? norm_weight_decay : weight_decay;
    const float decay = group == nullptr ? by_kind : group->weight_decay.value_or(by_kind);
    const float lr_scale = group == nullptr ? 1.0F : group->lr_mult;
    const std::int64_t end = parameter->offset + parameter->elements;
    if (!ranges.empty() && ranges.back().weight_decay == decay &&
        ranges.back().lr_scale == lr_scale) {
      ranges.back().end = end;
    } else {
      ranges.push_back({parameter->offset, end, decay, lr_scale});
    }
  }
  return ranges;
}

std::int64_t owned_begin(std::int64_t elements, int owner, int owners) {
  const std::int64_t granules = (elements + kGranule - 1) / kGranule;
  return std::min(elements, kGranule * (granules * owner / owners));
}

std::vector<ParameterRange> owned_ranges(const std::vector<ParameterRange>& ranges,
                                         std::int64_t elements, int owner, int owners) {
  LOCKSTEP_CHECK(owner >= 0 && owner < owners, "expected an owner in [0, ", owners, "), got ",
                 owner);
  const std::int64_t begin = owned_begin(elements, owner, owners);
  const std::int64_t end = owned_begin(elements, owner + 1, owners);
  std::vector<ParameterRange> owned;
  for (const ParameterRange& range : ranges) {
    ParameterRange part = range;
    part.begin = std::max(range.begin, begin);
    part.end = std::min(range.end, end);
    if (part.begin < part.end) owned.push_back(part);
  }
  return owned;
}

}  // namespace lockstep
