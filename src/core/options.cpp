#include "lockstep/core/options.h"

#include <array>
#include <charconv>
#include <cmath>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

/// All digits, and no exponent where the number is a whole one that people write out.
std::string shortest(double value) {
  constexpr double kWritten = 1e15;
  std::array<char, 32> text{};
  const bool whole = std::abs(value) < kWritten && value == std::trunc(value);
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 whole ? std::chars_format::fixed : std::chars_format::general);
  return {text.data(), end.ptr};
}

}  // namespace

std::string describe(const Limits& limits, const std::string& kind) {
  const bool low = !std::isinf(limits.lo), high = !std::isinf(limits.hi);
  std::string text = kind;
  if (low) text += concat(limits.above ? " > " : " >= ", shortest(limits.lo));
  if (high) {
    text += concat(low ? " and" : "", limits.below ? " < " : " <= ", shortest(limits.hi));
  }
  return text;
}

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
