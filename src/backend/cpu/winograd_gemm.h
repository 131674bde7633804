#pragma once
// The two matrix products of a Winograd convolution, one per point of the Winograd domain. Channel
// counts are multiples of kPanel here: whoever fills the operands pads them with zeros.

#include <cstdint>

namespace lockstep::winograd {

/// Columns that the micro-kernels compute at once, and the unit to which channels are padded.
inline constexpr std::int64_t kPanel = 16;
/// Rows that the micro-kernels compute at once: 6 x 16 sums fill 12 of the 16 registers of 8
/// floats.
inline constexpr std::int64_t kRows = 6;

/// c [rows, columns] = a [rows, depth] * b, all sums over `depth` in order. b is packed by panels
/// of columns: element (k, n) lies at b[(n / kPanel * depth + k) * kPanel + n % kPanel]. a and c
/// are dense. REQUIRES: rows a multiple of kRows, depth and columns multiples of kPanel.
void multiply(const float* a, const float* b, float* c, std::int64_t rows, std::int64_t depth,
              std::int64_t columns);

/// c [rows, columns] = or += a^T * b for dense a [depth, rows], b [depth, columns]. The products
/// are summed by themselves and then added to c, so that many calls sum by blocks, which rounds
/// less than one long sum. REQUIRES: rows and columns multiples of kPanel.
void multiply_transposed(const float* a, const float* b, float* c, std::int64_t rows,
                         std::int64_t depth, std::int64_t columns, bool accumulate);

}  // namespace lockstep::winograd
