#pragma once
// Elements of activations in GPU memory: fp32, bf16 or fp16 there, always fp32 in registers. The
// conversions round to the nearest, ties to even, and give the same bits on the host and on the
// device (a NaN becomes the canonical NaN of the narrow type).

#include <bit>
#include <cstdint>
#include <type_traits>

#include "backend/bfloat16.h"
#include "backend/formulas.h"
#include "lockstep/core/tensor.h"

/// Before a loop over the elements of a pack, or over packs: nvcc is to unroll it, so that they
/// stay in registers.
#if defined(__CUDA_ARCH__)
#define LOCKSTEP_UNROLL _Pragma("unroll")
#else
#define LOCKSTEP_UNROLL
#endif

namespace lockstep::gpu {

/// IEEE 754 binary16.
struct Float16 {
  std::uint16_t bits;
};

namespace detail {

inline constexpr std::uint32_t kInfinityBits = 0x7f800000U;  // of fp32
inline constexpr std::uint32_t kRebias = 0x38000000U;  // 112 in the exponent: fp32's less fp16's

LOCKSTEP_HOST_DEVICE inline std::uint16_t float16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > kInfinityBits) return 0x7fff;
  if (magnitude >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // from 2^16 on
  if (magnitude < 0x38800000U) {
    // Below 2^-14 fp16 counts in steps of 2^-24, as fp32 does from 0.5 on: its addition rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + (magnitude >> 13 & 1U);
  return static_cast<std::uint16_t>(sign | (rounded - kRebias) >> 13);
}

LOCKSTEP_HOST_DEVICE inline float from_float16_bits(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7fffU;
  if (magnitude < 0x400U) {  // zero or subnormal: magnitude * 2^-24
    const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  if (magnitude >= 0x7c00U) {
    return std::bit_cast<float>(sign | kInfinityBits | (magnitude & 0x3ffU) << 13);
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + kRebias));
}

}  // namespace detail

LOCKSTEP_HOST_DEVICE inline float to_float(float value) { return value; }
LOCKSTEP_HOST_DEVICE inline float to_float(BFloat16 value) { return value; }
LOCKSTEP_HOST_DEVICE inline float to_float(Float16 value) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#else
  return detail::from_float16_bits(value.bits);
#endif
}

/// The nearest value that T can store.
template <typename T>
LOCKSTEP_HOST_DEVICE T from_float(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    T result;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<T, BFloat16>) {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    } else {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    }
#else
    if constexpr (std::is_same_v<T, BFloat16>) {
      result = value;
    } else {
      result.bits = detail::float16_bits(value);
    }
#endif
    return result;
  }
}

/// Calls function(T{}) with the element type T of `dtype`. Throws Error for types that activations
/// cannot have.
template <typename Function>
void with_element_type(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::kFloat32:
      return function(float{});
    case DType::kBFloat16:
      return function(BFloat16{});
    case DType::kFloat16:
      return function(Float16{});
    case DType::kUInt8:
    case DType::kUInt16:
      break;
  }
  LOCKSTEP_CHECK(false, "expected activations in fp32, bf16 or fp16, got ", to_string(dtype));
}

}  // namespace lockstep::gpu
