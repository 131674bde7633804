#pragma once
// Division of 32-bit indices by a number that is known when a kernel starts: a multiplication, an
// addition and a shift, where GPUs, which have no instruction that divides, take some 20
// instructions for 32 bits and a subroutine of about 100 for 64. Granlund and Montgomery (1994),
// fig. 4.1, for dividends below 2^31.

#include <bit>
#include <cstdint>

#include "lockstep/core/check.h"
#include "lockstep/core/device.h"

namespace lockstep::gpu {

/// The largest dividend and divisor; kernels that count their items with 32 bits have as many at
/// most.
inline constexpr std::int64_t kMaxItems = 0x7fffffff;

class Divisor {
 public:
  constexpr Divisor() = default;  // 1
  /// Throws Error unless 1 <= divisor <= kMaxItems.
  explicit Divisor(std::int64_t divisor) {
    LOCKSTEP_CHECK(divisor >= 1 && divisor <= kMaxItems, "expected a divisor from 1 to ", kMaxItems,
                   ", got ", divisor);
    const auto d = static_cast<std::uint64_t>(divisor);
    shift_ = static_cast<std::uint32_t>(std::bit_width(d - 1));
    const std::uint64_t gap = (std::uint64_t{1} << shift_) - d;  // to the next power of two
    magic_ = static_cast<std::uint32_t>((gap << 32) / d + 1);
  }

  /// REQUIRES: n <= kMaxItems.
  LOCKSTEP_HOST_DEVICE std::uint32_t divide(std::uint32_t n) const {
    const auto high = static_cast<std::uint32_t>(std::uint64_t{n} * magic_ >> 32);
    return (high + n) >> shift_;
  }
  /// REQUIRES: n >= 0.
  LOCKSTEP_HOST_DEVICE friend std::int32_t operator/(std::int32_t n, const Divisor& divisor) {
    return static_cast<std::int32_t>(divisor.divide(static_cast<std::uint32_t>(n)));
  }

 private:
  std::uint32_t magic_ = 1, shift_ = 0;
};

}  // namespace lockstep::gpu
