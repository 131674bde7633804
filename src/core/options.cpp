#include "lockstep/core/options.h"

#include <cmath>

#include "lockstep/core/check.h"

namespace lockstep {

bool contains(const Limits& limits, double value) {
  const bool low = limits.above ? value > limits.lo : value >= limits.lo;
  const bool high = limits.below ? value < limits.hi : value <= limits.hi;
  return std::isfinite(value) && low && high;
}

void check_number(const std::string& what, double value, const Limits& limits) {
  if (contains(limits, value)) return;
  throw ConfigError(concat(what, " must be ", limits.above ? "above " : "at least ", limits.lo,
                           " and ", limits.below || std::isinf(limits.hi) ? "below " : "at most ",
                           limits.hi, ", is ", value));
}

}  // namespace lockstep
