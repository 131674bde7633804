#pragma once
// exp and log of eight values at a time (std::exp and std::log are a call per value), for the range
// that a softmax needs.

#include <bit>

#include "backend/cpu/vec.h"

namespace lockstep::vec {

/// The least argument of `exp` that counts; its result there is 0.
inline constexpr float kExpLowest = -88.0F;

/// exp(x) for x <= 0: within 2 units in the last place while the result is normal (x > -87.3), 0
/// from -87.7 on; NaN stays NaN. Method: x = n ln 2 + r, |r| <= ln 2 / 2, exp(r) by its Taylor
/// series to the seventh degree (remainder below 6e-9), 2^n by its bits.
inline Floats exp(Floats x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const Floats lowest = broadcast(kExpLowest);
  x = lowest > x ? lowest : x;  // NaN stays
  const Floats shifted = x * kLog2E + kRound;
  const Floats n = shifted - kRound;
  const Floats r = (x - n * kLn2High) - n * kLn2Low;
  Floats p = r * (1.0F / 5040) + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * (r * r) + (r + 1.0F);
  const Ints exponent = std::bit_cast<Ints>(shifted) - std::bit_cast<std::int32_t>(kRound);
  const auto power = std::bit_cast<Floats>((exponent + 127) << 23);
  return p * power;
}

/// log(x) for x >= 1, finite: within 1 unit in the last place; NaN stays NaN. Method: x = 2^n (1 +
/// f), |f| <= 1/3, log(1 + f) = f - f^2 / 2 + f^3 P(f), P of the seventh degree with the least
/// largest relative error (5e-9).
inline Floats log(Floats x) {
  constexpr float kLn2 = 0.693147182F;
  constexpr std::int32_t kTwoThirds = 0x3F2AAAAB;  // the bits of 2/3, the least 1 + f
  const Ints exponent = (std::bit_cast<Ints>(x) - kTwoThirds) >> 23;
  const auto n = __builtin_convertvector(exponent, Floats);
  const Floats f = std::bit_cast<Floats>(std::bit_cast<Ints>(x) - (exponent << 23)) - 1.0F;
  Floats p = f * -0.12891601F + 0.13984467F;
  p = p * f - 0.12184278F;
  p = p * f + 0.14005862F;
  p = p * f - 0.16680487F;
  p = p * f + 0.20010406F;
  p = p * f - 0.24999797F;
  p = p * f + 0.33333215F;
  p = p * f - 0.5F;
  p = p * (f * f) + f;
  return x == x ? n * kLn2 + p : x;
}

}  // namespace lockstep::vec
