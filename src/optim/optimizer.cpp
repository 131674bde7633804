#include "lockstep/optim/optimizer.h"

#include <set>

#include "core/number_check.h"
#include "lockstep/core/check.h"

namespace lockstep {

float base_learning_rate(const Optimizer& optimizer) {
  return std::visit([](const auto& any) { return any.lr; }, optimizer);
}

std::string optimizer_name(const Optimizer& optimizer) {
  return std::visit([](const auto& any) { return std::string(any.kName); }, optimizer);
}

std::vector<std::string> optimizer_slots(const Optimizer& optimizer) {
  return std::visit(
      [](const auto& any) {
        return std::vector<std::string>(std::begin(any.kSlots), std::end(any.kSlots));
      },
      optimizer);
}

void check_optimizer(const Optimizer& optimizer, std::span<const ParameterGroup> groups) {
  std::visit(
      [](auto any) {
        NumberCheck check{concat(any.kTitle, "'s ")};
        any.visit_options(check);
      },
      optimizer);
  std::set<std::string> prefixes;
  for (const ParameterGroup& group : groups) {
    if (!prefixes.insert(group.prefix).second) {
      throw ConfigError(
          concat("two parameter groups have the prefix \"", group.prefix, "\"; join them"));
    }
    const std::string whose = concat(" of the parameter group \"", group.prefix, "\"");
    check_number("lr_mult" + whose, static_cast<double>(group.lr_mult), limits::kNotNegative);
    check_number("weight_decay" + whose, static_cast<double>(group.weight_decay.value_or(0)),
                 limits::kNotNegative);
  }
}

void check_clipping(const GradientClipping& clipping) {
  check_number("the bound of the gradient's norm", static_cast<double>(clipping.norm),
               limits::kNotNegative);
  check_number("the bound of the gradient's elements", static_cast<double>(clipping.value),
               limits::kNotNegative);
}

}  // namespace lockstep
