#pragma once
// The values that tensors of a type can hold, computed from the formats' definitions and not as
// kernels or backends do.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep::test {

/// A binary floating-point format of at most 32 bits.
struct FloatFormat {
  int digits;    // of the significand, the leading 1 included
  int exponent;  // the least of a normal number, 2^exponent
};

/// REQUIRES: not kUInt8.
inline FloatFormat format_of(DType dtype) {
  if (dtype == DType::kFloat32) return {24, -126};
  return dtype == DType::kBFloat16 ? FloatFormat{8, -126} : FloatFormat{11, -14};
}

/// The distance of neighbouring numbers of the type about `value`.
inline double spacing(DType dtype, double value) {
  const FloatFormat format = format_of(dtype);
  const int exponent = value == 0 ? format.exponent : std::max(std::ilogb(value), format.exponent);
  return std::ldexp(1.0, exponent - format.digits + 1);
}

/// The nearest value of the type, ties to even. Not meant for what is too large for it.
inline float stored(DType dtype, float value) {
  if (dtype == DType::kFloat32 || !std::isfinite(value)) return value;
  const double unit = spacing(dtype, static_cast<double>(value));
  return static_cast<float>(std::nearbyint(static_cast<double>(value) / unit) * unit);
}

/// The bits of a value of bf16 or fp16; REQUIRES: stored() of it.
inline std::uint16_t to_bits(DType dtype, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (dtype == DType::kBFloat16) return static_cast<std::uint16_t>(bits >> 16);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7e00U);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | 0x7c00U);
  const float magnitude = std::abs(value);
  const auto steps =
      static_cast<std::uint32_t>(magnitude / static_cast<float>(spacing(dtype, magnitude)));
  if (magnitude < 0x1p-14F) return static_cast<std::uint16_t>(sign | steps);
  const auto exponent = static_cast<std::uint32_t>(std::ilogb(magnitude) + 15);
  return static_cast<std::uint16_t>(sign | exponent << 10 | (steps & 0x3ffU));
}

inline float from_bits(DType dtype, std::uint16_t bits) {
  if (dtype == DType::kBFloat16) return std::bit_cast<float>(std::uint32_t{bits} << 16);
  const float sign = (bits & 0x8000U) != 0 ? -1.0F : 1.0F;
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  if (exponent == 0x1f) {
    return fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : sign * std::numeric_limits<float>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 0x400), exponent - 25);
}

}  // namespace lockstep::test
