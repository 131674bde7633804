#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// A block of the norm has one owner. Cache lines have, too, as they must: neighbouring owners write
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

/// Of `what`; `below`: its bound.
void check_number(const char* what, double value, double least, double below) {
  if (value >= least && value < below) return;
  throw ConfigError(
      concat(what, " must be at least ", least, " and below ", below, ", is ", value));
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_numbers(const Sgd& sgd) {
  check_number("momentum", static_cast<double>(sgd.momentum), 0, kInfinity);
}

// Without eps what never had a gradient would be divided by zero.
void check_numbers(const AdamW& adamw) {
  check_number("AdamW's beta1", adamw.beta1, 0, 1);
  check_number("AdamW's beta2", adamw.beta2, 0, 1);
  check_number("AdamW's eps", static_cast<double>(adamw.eps),
               static_cast<double>(std::numeric_limits<float>::denorm_min()), kInfinity);
}

}  // namespace

float base_learning_rate(const Optimizer& optimizer) {
  return std::visit([](const auto& any) { return any.lr; }, optimizer);
}

std::string optimizer_name(const Optimizer& optimizer) {
  return std::holds_alternative<Sgd>(optimizer) ? "sgd" : "adamw";
}

std::vector<std::string> optimizer_slots(const Optimizer& optimizer) {
  if (std::holds_alternative<Sgd>(optimizer)) return {"momentum_buffer"};
  return {"exp_avg", "exp_avg_sq"};
}

void check_optimizer(const Optimizer& optimizer, std::span<const ParameterGroup> groups) {
  std::visit([](const auto& any) { check_numbers(any); }, optimizer);
  std::set<std::string> prefixes;
  for (const ParameterGroup& group : groups) {
    if (!prefixes.insert(group.prefix).second) {
      throw ConfigError(
          concat("two parameter groups have the prefix \"", group.prefix, "\"; join them"));
    }
    const std::string whose = concat("of the parameter group \"", group.prefix, "\"");
    check_number(concat("lr_mult ", whose).c_str(), static_cast<double>(group.lr_mult), 0,
                 kInfinity);
    check_number(concat("weight_decay ", whose).c_str(),
                 static_cast<double>(group.weight_decay.value_or(0)), 0, kInfinity);
  }
}

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
