#pragma once
// Numbers of the self-test: random ones, the same on every machine, and how far others are apart.

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checks/checks.h"
#include "checks/reference_batch_norm.h"

namespace lockstep {

/// A tolerance for fp32 against double, where a few roundings are all that may lie between.
inline constexpr double kRoundings =
    64.0 * static_cast<double>(std::numeric_limits<float>::epsilon());

using Floats = std::vector<float>;
using NamedFloats = std::map<std::string, Floats>;
using NamedDoubles = std::map<std::string, Doubles>;

/// Standard normal numbers times `scale`. `index` names the numbers: others are independent.
Floats normal_floats(std::int64_t count, std::uint64_t index, float scale = 1.0F);
/// Numbers of either sign, 0.75 to 1.25 in size: none lies near 0.
Floats bimodal_floats(std::int64_t count, std::uint64_t index);
/// Multiples of 1/32 around 0 in random order, no two equal.
Floats distinct_floats(std::int64_t count, std::uint64_t index);

Doubles widen(std::span<const float> values);

/// The largest |a - b|, and its ratio to the largest |expected|. NaN where there is one. Throws
/// Error when there are not as many numbers as expected.
Measured difference(std::span<const float> values, std::span<const double> expected);
Measured difference(std::span<const double> values, std::span<const double> expected);
Measured difference(std::span<const float> values, std::span<const float> expected);
/// Over all names. Throws Error when there are others.
Measured difference(const NamedDoubles& values, const NamedDoubles& expected);

/// The larger errors of both.
Measured worst(const Measured& a, const Measured& b);

}  // namespace lockstep
