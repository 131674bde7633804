#pragma once
// The two matrix products of a Winograd convolution, one per point of the Winograd domain. Channel
// counts are multiples of kChannelUnit here: whoever fills the operands pads them with zeros.

#include <cstdint>

namespace lockstep::winograd {

/// The unit to which channels are padded, the same for vectors of any width: one vector of sixteen
/// floats, two of eight. More would waste half of the products of sixteen channels.
inline constexpr std::int64_t kChannelUnit = 16;

/// The products with vectors of 8 or 16 floats. Both widths give the same bits.
template <std::int64_t kLanes>
struct Products {
  static_assert(kLanes == 8 || kLanes == 16);
  /// Rows and columns that the micro-kernel of `multiply` computes at once. 6 x 16 sums fill 12 of
  /// the 16 registers of AVX, 14 x 32 sums 28 of the 32 of AVX-512; what is left holds the factors.
  /// For sixteen columns beyond a multiple of 32 there are 14 x 16 sums.
  static constexpr std::int64_t kRows = kLanes == 8 ? 6 : 14;
  static constexpr std::int64_t kPanel = 2 * kLanes;

  /// c [rows, columns] = a [rows, depth] * b, all sums over `depth` in order. b is packed by panels
  /// of kPanel columns, or what is left of them: column n of a panel of `width` columns from column
  /// `first` on has element k at b[first * depth + k * width + n]. a and c are dense.
  /// REQUIRES: rows a multiple of kRows, depth and columns multiples of kChannelUnit.
  static void multiply(const float* a, const float* b, float* c, std::int64_t rows,
                       std::int64_t depth, std::int64_t columns);

  /// c [rows, columns] = or += a^T * b for dense a [depth, rows], b [depth, columns]. The products
  /// are summed by themselves and then added to c, so that many calls sum by blocks, which rounds
  /// less than one long sum. REQUIRES: rows and columns multiples of kChannelUnit.
  static void multiply_transposed(const float* a, const float* b, float* c, std::int64_t rows,
                                  std::int64_t depth, std::int64_t columns, bool accumulate);
};

}  // namespace lockstep::winograd
