#pragma once
// exp for loops that the compiler vectorises (std::exp is a call per element).

#include <bit>
#include <cstdint>

namespace lockstep {

/// The least argument of `fast_exp`; its result there is 0.
inline constexpr float kFastExpLowest = -88.0F;

/// exp(x) for kFastExpLowest <= x <= 0: within 2 units in the last place while the result is normal
/// (x > -87.3), 0 from -87.7 on; NaN stays NaN. The caller clamps, in a loop of its own: here, the
/// compiler would see a constant result behind the comparison and make a branch that it cannot
/// vectorise. Method: x = n ln 2 + r, |r| <= ln 2 / 2, exp(r) by its Taylor series to the seventh
/// degree (remainder below 6e-9), 2^n by its bits.
inline float fast_exp(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * (r * r) + (r + 1.0F);
  const std::uint32_t exponent =
      std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRound);
  const auto power = std::bit_cast<float>((exponent + 127U) << 23U);
  return p * power;
}

}  // namespace lockstep
