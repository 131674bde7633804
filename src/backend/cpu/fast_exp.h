#pragma once
// exp for loops that the compiler vectorises (std::exp is a call per element).

#include <bit>
#include <cstdint>

namespace lockstep {

/// exp(x) for x <= 0, within 2 units in the last place; 0 below -87.3 (where the result would be
/// subnormal). NaN stays NaN. Method: x = n ln 2 + r, |r| <= ln 2 / 2, exp(r) by its Taylor series
/// to the seventh degree (remainder below 6e-9), 2^n by its bits.
inline float exp_of_non_positive(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kLowest = -87.3F;
  const float clamped = x < kLowest ? kLowest : x;
  const float shifted = clamped * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * (r * r) + (r + 1.0F);
  const std::int32_t exponent =
      std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRound);
  const auto power = std::bit_cast<float>((exponent + 127) * (1 << 23));
  return x < kLowest ? 0.0F : p * power;
}

}  // namespace lockstep
