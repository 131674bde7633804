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

float decay_of(ParameterKind kind, const Optimizer& optimizer) {
  return std::visit(
      [kind](const auto& any) {
        switch (kind) {
          case ParameterKind::kNorm:
            return any.norm_weight_decay;
          case ParameterKind::kBias:
            return any.bias_weight_decay.value_or(any.weight_decay);
          default:
            return any.weight_decay;
        }
      },
      optimizer);
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

bool is_frozen(const std::string& name, std::span<const ParameterGroup> groups) {
  const ParameterGroup* group = group_of(name, groups);
  return group != nullptr && group->frozen;
}

std::vector<ParameterRange> parameter_ranges(const ParameterStore& store,
                                             const Optimizer& optimizer,
                                             std::span<const ParameterGroup> groups) {
  check_prefixes(store, groups);
  std::vector<ParameterRange> ranges;
  bool updated_before = false;  // the parameter before
  for (const auto& parameter : store.parameters()) {
    const ParameterGroup* group = group_of(parameter->name, groups);
    const bool frozen = is_frozen(parameter->name, groups);
    const bool follows = std::exchange(updated_before, !frozen);
    if (frozen) continue;
    const float by_kind = decay_of(parameter->kind, optimizer);
    const float decay = group == nullptr ? by_kind : group->weight_decay.value_or(by_kind);
    const float lr_scale = group == nullptr ? 1.0F : group->lr_mult;
    const std::int64_t end = parameter->offset + parameter->elements;
    if (follows && ranges.back().weight_decay == decay && ranges.back().lr_scale == lr_scale) {
      ranges.back().end = end;
    } else {
      ranges.push_back({parameter->offset, end, decay, lr_scale});
    }
  }
  return ranges;
}

namespace {

/// With owner = owners: where the elements end.
std::int64_t owned_begin(std::int64_t elements, int owner, int owners) {
  const std::int64_t granules = (elements + kGranule - 1) / kGranule;
  return std::min(elements, kGranule * (granules * owner / owners));
}

}  // namespace

ElementRange owned_range(std::int64_t elements, int owner, int owners) {
  return {owned_begin(elements, owner, owners), owned_begin(elements, owner + 1, owners)};
}

ElementRange owned_by_process(std::int64_t elements, int process, const RankLayout& layout) {
  const auto of = static_cast<std::size_t>(process);
  return {owned_begin(elements, layout.first[of], layout.ranks()),
          owned_begin(elements, layout.first[of + 1], layout.ranks())};
}

std::vector<ParameterRange> owned_ranges(const std::vector<ParameterRange>& ranges,
                                         std::int64_t elements, int owner, int owners) {
  LOCKSTEP_CHECK(owner >= 0 && owner < owners, "expected an owner in [0, ", owners, "), got ",
                 owner);
  const ElementRange all = owned_range(elements, owner, owners);
  std::vector<ParameterRange> owned;
  for (const ParameterRange& range : ranges) {
    ParameterRange part = range;
    part.begin = std::max(range.begin, all.begin);
    part.end = std::min(range.end, all.end);
    if (part.begin < part.end) owned.push_back(part);
  }
  return owned;
}

}  // namespace lockstep
