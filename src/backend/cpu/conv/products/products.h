#pragma once
// The two matrix products that convolutions are made of here: of a Winograd convolution one per
// point of the Winograd domain, of a 1x1 convolution the whole of it. Channel counts are multiples
// of kChannelUnit: whoever fills the operands pads them with zeros.

#include <cstdint>

namespace lockstep::matmul {

/// The unit to which channels are padded, the same for vectors of any width: one vector of sixteen
/// floats, two of eight. More would waste half of the products of sixteen channels.
inline constexpr std::int64_t kChannelUnit = 16;

inline std::int64_t padded(std::int64_t channels) {
  return (channels + kChannelUnit - 1) / kChannelUnit * kChannelUnit;
}

/// A distance of rows of so many floats (a multiple of kChannelUnit) such that a few of them fit a
/// first-level cache at once: at a distance of a large power of two all would meet in few of its
/// lines.
inline std::int64_t apart(std::int64_t floats) {
  return floats % 256 == 0 ? floats + kChannelUnit : floats;
}

/// A matrix whose rows lie `stride` elements apart.
struct ConstRows {
  const float* data = nullptr;
  std::int64_t stride = 0;
};
struct Rows {
  float* data = nullptr;
  std::int64_t stride = 0;
};

/// The extents of a product: rows x columns sums over `depth`.
struct Extents {
  std::int64_t rows = 0, depth = 0, columns = 0;
};

/// The products with vectors of 8 or 16 floats. Both widths give the same bits.
template <std::int64_t kLanes>
struct Products {
  static_assert(kLanes == 8 || kLanes == 16);
  /// The most rows and columns that a micro-kernel of `multiply` computes at once. 6 x 16 sums fill
  /// 12 of the 16 registers of AVX, 14 x 32 sums 28 of the 32 of AVX-512; what is left holds the
  /// factors. For sixteen columns beyond a multiple of 32 there are 14 x 16 sums.
  static constexpr std::int64_t kRows = kLanes == 8 ? 6 : 14;
  static constexpr std::int64_t kPanel = 2 * kLanes;

  /// c = a * b, each sum over `depth` one after the other. b is packed by panels of kPanel columns,
  /// or what is left of them: column n of a panel of `width` columns from column `first` on has
  /// element k at b[first * depth + k * width + n].
  /// REQUIRES: depth and columns multiples of kChannelUnit.
  static void multiply(const ConstRows& a, const float* b, const Rows& c, const Extents& extents);

  /// c = or += a^T * b for a [depth, rows], b [depth, columns]. The products are summed by
  /// themselves and then added to c, so that many calls sum by blocks, which rounds less than one
  /// long sum. REQUIRES: rows and columns multiples of kChannelUnit.
  static void multiply_transposed(const ConstRows& a, const ConstRows& b, const Rows& c,
                                  const Extents& extents, bool accumulate);
};

}  // namespace lockstep::matmul
