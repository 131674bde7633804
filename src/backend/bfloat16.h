#pragma once
// An activation in 16 bits: the upper half of an fp32 number. Arithmetic is fp32's, because it
// becomes a float by itself, exactly, and of a float the nearest number, ties to even; a NaN
// becomes the canonical one. The same bits on the host and on a GPU.

#include <bit>
#include <cstdint>

#include "lockstep/core/device.h"

namespace lockstep {

struct BFloat16 {
  std::uint16_t bits;

  /// Not by way of another BFloat16: of a loop with copies of structs compilers make no vectors.
  LOCKSTEP_HOST_DEVICE BFloat16& operator=(float value) {
    bits = nearest(value);
    return *this;
  }
  /// Implicit: code for floats is code for these.
  LOCKSTEP_HOST_DEVICE operator float() const {  // NOLINT(google-explicit-constructor)
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

 private:
  LOCKSTEP_HOST_DEVICE static std::uint16_t nearest(float value) {
    const auto of = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t number = (of + 0x7fffU + (of >> 16 & 1U)) >> 16;
    return static_cast<std::uint16_t>((of & 0x7fffffffU) > 0x7f800000U ? 0x7fffU : number);
  }
};

}  // namespace lockstep
