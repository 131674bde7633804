#include "backend/cpu/conv/products/products.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "backend/cpu/simd.h"

namespace lockstep::matmul {

using namespace simd;

namespace {

/// How the loop of a micro-kernel is written so that its addresses need no arithmetic between the
/// products and its sums no memory (compilers spill sums where the unrolled body grows too long).
template <std::int64_t kLanes>
struct Loop {
  static constexpr int kUnroll = kLanes == 8 ? 4 : 2;  // of the depth; divides kChannelUnit
  /// Rows that share a pointer: six pointers fit the processor's registers, fourteen do not. The
  /// second and third row of a pointer lie `lda` and `2 * lda` further, which an address can say.
  static constexpr int kRowsPerPointer = kLanes == 8 ? 1 : 3;
};

/// kRows x (kVecs * kLanes) sums in registers. `lda` stays a run-time value.
template <std::int64_t kLanes, int kVecs, int kRows>
void panel_product(const float* a, std::int64_t lda, std::int64_t depth, const float* b, float* c,
                   std::int64_t ldc) {
  constexpr int kUnroll = Loop<kLanes>::kUnroll;
  constexpr int kShared = Loop<kLanes>::kRowsPerPointer;
  constexpr int kPointers = (kRows + kShared - 1) / kShared;
  Vec<kLanes> sum[kRows][kVecs] = {};
  const float* row[kPointers];
  unrolled<kPointers>([&](int p) { row[p] = a + p * kShared * lda; });
  for (std::int64_t k = 0; k < depth; k += kUnroll, b += kUnroll * kVecs * kLanes) {
    unrolled<kUnroll>([&](int u) __attribute__((always_inline)) {
      Vec<kLanes> column[kVecs];
      unrolled<kVecs>([&](int v) __attribute__((always_inline)) {
        column[v] = load<kLanes>(b + (u * kVecs + v) * kLanes);
      });
      unrolled<kRows>([&](int r) __attribute__((always_inline)) {
        const float value = (row[r / kShared] + r % kShared * lda)[u];
        unrolled<kVecs>([&](int v)
                            __attribute__((always_inline)) { sum[r][v] += value * column[v]; });
      });
    });
    unrolled<kPointers>([&](int p) { row[p] += kUnroll; });
  }
  unrolled<kRows>([&](int r) {
    unrolled<kVecs>([&](int v) { store<kLanes>(c + r * ldc + v * kLanes, sum[r][v]); });
  });
}

/// The micro-kernels of 1, 2, ... rows.
template <std::int64_t kLanes, int kVecs, std::size_t... kFewer>
constexpr auto panel_products(std::index_sequence<kFewer...>) {
  return std::array{&panel_product<kLanes, kVecs, static_cast<int>(kFewer) + 1>...};
}

/// kCount x (kVecs * kLanes) sums of a^T * b.
template <std::int64_t kLanes, int kVecs, int kCount>
void panel_product_transposed(const ConstRows& a, const ConstRows& b, const Rows& c,
                              std::int64_t depth, bool accumulate) {
  Vec<kLanes> sum[kCount][kVecs] = {};
  const float* row = a.data;
  const float* from = b.data;
  for (std::int64_t k = 0; k < depth; ++k, row += a.stride, from += b.stride) {
    Vec<kLanes> column[kVecs];
    unrolled<kVecs>([&](int v) __attribute__((always_inline)) {
      column[v] = load<kLanes>(from + v * kLanes);
    });
    unrolled<kCount>([&](int r) __attribute__((always_inline)) {
      unrolled<kVecs>([&](int v)
                          __attribute__((always_inline)) { sum[r][v] += row[r] * column[v]; });
    });
  }
  const auto for_each_sum = [&](auto&& body) __attribute__((always_inline)) {
    unrolled<kCount>([&](int r) __attribute__((always_inline)) {
      unrolled<kVecs>([&](int v) __attribute__((always_inline)) {
        body(c.data + r * c.stride + v * kLanes, sum[r][v]);
      });
    });
  };
  if (accumulate) for_each_sum([](float* to, Vec<kLanes>& s) { s += load<kLanes>(to); });
  for_each_sum([](float* to, Vec<kLanes>& s) { store<kLanes>(to, s); });
}

/// Rows [first, end) of c for the columns of one panel, kCount at a time.
template <std::int64_t kLanes, int kVecs, int kCount>
void multiply_rows_transposed(const ConstRows& a, const ConstRows& b, const Rows& c,
                              std::int64_t first, std::int64_t end, std::int64_t depth,
                              bool accumulate) {
  for (std::int64_t m = first; m < end; m += kCount) {
    panel_product_transposed<kLanes, kVecs, kCount>(
        {a.data + m, a.stride}, b, {c.data + m * c.stride, c.stride}, depth, accumulate);
  }
}

}  // namespace

template <std::int64_t kLanes>
void Products<kLanes>::multiply(const ConstRows& a, const float* b, const Rows& c,
                                const Extents& extents) {
  const auto& [rows, depth, columns] = extents;
  const auto panel = [&](auto vecs, std::int64_t n) {
    constexpr int kVecs = decltype(vecs)::value;
    static constexpr auto kOfRows =
        panel_products<kLanes, kVecs>(std::make_index_sequence<kRows>());
    for (std::int64_t m = 0; m < rows; m += kRows) {
      const std::int64_t count = std::min(kRows, rows - m);
      kOfRows[static_cast<std::size_t>(count - 1)](a.data + m * a.stride, a.stride, depth,
                                                   b + n * depth, c.data + m * c.stride + n,
                                                   c.stride);
    }
  };
  // A panel of b stays in a cache while the rows of a pass by.
  std::int64_t n = 0;
  for (; n + kPanel <= columns; n += kPanel) panel(std::integral_constant<int, 2>(), n);
  if constexpr (kPanel > kChannelUnit) {
    if (n < columns) panel(std::integral_constant<int, 1>(), n);
  }
}

template <>
void Products<8>::multiply_transposed(const ConstRows& a, const ConstRows& b, const Rows& c,
                                      const Extents& extents, bool accumulate) {
  const auto& [rows, depth, columns] = extents;
  // Sixes, and fives for what is not a multiple of six: fewer rows would be too few independent
  // sums to fill the latency of the multiply-add units.
  const std::int64_t sixes = rows - (6 - rows % 6) % 6 * 5;
  for (std::int64_t n = 0; n < columns; n += kPanel) {
    const ConstRows from{b.data + n, b.stride};
    const Rows to{c.data + n, c.stride};
    multiply_rows_transposed<8, 2, 6>(a, from, to, 0, sixes, depth, accumulate);
    multiply_rows_transposed<8, 2, 5>(a, from, to, sixes, rows, depth, accumulate);
  }
}

template <>
void Products<16>::multiply_transposed(const ConstRows& a, const ConstRows& b, const Rows& c,
                                       const Extents& extents, bool accumulate) {
  const auto& [rows, depth, columns] = extents;
  // Sixteen sums at once in either shape: twice what fills the latency of two multiply-add units.
  // Their numbers of rows divide kChannelUnit, so that none are left.
  std::int64_t n = 0;
  for (; n + kPanel <= columns; n += kPanel) {
    multiply_rows_transposed<16, 2, 8>(a, {b.data + n, b.stride}, {c.data + n, c.stride}, 0, rows,
                                       depth, accumulate);
  }
  if (n == columns) return;
  multiply_rows_transposed<16, 1, 16>(a, {b.data + n, b.stride}, {c.data + n, c.stride}, 0, rows,
                                      depth, accumulate);
}

template struct Products<8>;
template struct Products<16>;

}  // namespace lockstep::matmul
