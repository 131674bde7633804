#include "checks/measure.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/rng.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

Rng numbers(std::uint64_t index) { return {0, RngPurpose::kTest, index}; }

/// Keeps NaN.
double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

std::optional<double> larger(std::optional<double> a, std::optional<double> b) {
  return a && b ? larger(*a, *b) : (a ? a : b);
}

template <typename Value, typename Expected>
Measured compare(std::span<const Value> values, std::span<const Expected> expected) {
  LOCKSTEP_CHECK(values.size() == expected.size(), "expected ", expected.size(), " numbers, got ",
                 values.size());
  double apart = 0, largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    apart =
        larger(std::abs(static_cast<double>(values[i]) - static_cast<double>(expected[i])), apart);
    largest = larger(std::abs(static_cast<double>(expected[i])), largest);
  }
  return {apart, apart == 0 ? 0 : apart / largest};
}

}  // namespace

Floats normal_floats(std::int64_t count, std::uint64_t index, float scale) {
  Rng rng = numbers(index);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = scale * rng.normal();
  return values;
}

Floats bimodal_floats(std::int64_t count, std::uint64_t index) {
  Rng rng = numbers(index);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values)
    value = rng.uniform(0.75F, 1.25F) * (rng.below(2) == 0 ? -1.0F : 1.0F);
  return values;
}

Floats distinct_floats(std::int64_t count, std::uint64_t index) {
  Rng rng = numbers(index);
  Floats values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(2 * i - count) / 64.0F);
    std::swap(values.back(), values[rng.below(static_cast<std::uint32_t>(values.size()))]);
  }
  return values;
}

Doubles widen(std::span<const float> values) { return {values.begin(), values.end()}; }

Measured difference(std::span<const float> values, std::span<const double> expected) {
  return compare(values, expected);
}

Measured difference(std::span<const double> values, std::span<const double> expected) {
  return compare(values, expected);
}

Measured difference(std::span<const float> values, std::span<const float> expected) {
  return compare(values, expected);
}

Measured difference(const NamedDoubles& values, const NamedDoubles& expected) {
  LOCKSTEP_CHECK(values.size() == expected.size(), "expected ", expected.size(), " tensors, got ",
                 values.size());
  Measured all{0, 0};
  for (const auto& [name, numbers] : expected) {
    LOCKSTEP_CHECK(values.contains(name), "expected a tensor ", name, ", got none");
    all = worst(all, difference(values.at(name), numbers));
  }
  return all;
}

Measured worst(const Measured& a, const Measured& b) {
  return {larger(a.absolute, b.absolute), larger(a.relative, b.relative)};
}

}  // namespace lockstep
