#include "backend/cpu/winograd/gemm.h"

#include "backend/cpu/winograd/vec.h"

namespace lockstep::winograd {

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
template <std::int64_t kLanes, int kVecs>
void panel_product(const float* a, std::int64_t lda, const float* b, float* c, std::int64_t ldc) {
  constexpr int kRows = Products<kLanes>::kRows;
  constexpr int kUnroll = Loop<kLanes>::kUnroll;
  constexpr int kShared = Loop<kLanes>::kRowsPerPointer;
  constexpr int kPointers = (kRows + kShared - 1) / kShared;
  Vec<kLanes> sum[kRows][kVecs] = {};
  const float* row[kPointers];
  unrolled<kPointers>([&](int p) { row[p] = a + p * kShared * lda; });
  for (std::int64_t k = 0; k < lda; k += kUnroll, b += kUnroll * kVecs * kLanes) {
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

/// kCount x (kVecs * kLanes) sums of a^T * b.
template <std::int64_t kLanes, int kVecs, int kCount>
void panel_product_transposed(const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                              std::int64_t depth, float* c, bool accumulate) {
  Vec<kLanes> sum[kCount][kVecs] = {};
  for (std::int64_t k = 0; k < depth; ++k, a += lda, b += ldb) {
    Vec<kLanes> column[kVecs];
    unrolled<kVecs>([&](int v) __attribute__((always_inline)) {
      column[v] = load<kLanes>(b + v * kLanes);
    });
    unrolled<kCount>([&](int r) __attribute__((always_inline)) {
      unrolled<kVecs>([&](int v) __attribute__((always_inline)) { sum[r][v] += a[r] * column[v]; });
    });
  }
  const auto for_each_sum = [&](auto&& body) __attribute__((always_inline)) {
    unrolled<kCount>([&](int r) __attribute__((always_inline)) {
      unrolled<kVecs>([&](int v) __attribute__((always_inline)) {
        body(c + r * ldb + v * kLanes, sum[r][v]);
      });
    });
  };
  if (accumulate) for_each_sum([](float* to, Vec<kLanes>& s) { s += load<kLanes>(to); });
  for_each_sum([](float* to, Vec<kLanes>& s) { store<kLanes>(to, s); });
}

/// All rows of c for the columns of one panel. Sixes, and fives for what is not a multiple of six:
/// fewer rows would be too few independent sums to fill the latency of the multiply-add units.
void multiply_panel_transposed(const float* a, const float* b, float* c, std::int64_t rows,
                               std::int64_t depth, std::int64_t columns, bool accumulate) {
  const std::int64_t sixes = rows - (6 - rows % 6) % 6 * 5;
  std::int64_t m = 0;
  for (; m < sixes; m += 6) {
    panel_product_transposed<8, 2, 6>(a + m, rows, b, columns, depth, c + m * columns, accumulate);
  }
  for (; m < rows; m += 5) {
    panel_product_transposed<8, 2, 5>(a + m, rows, b, columns, depth, c + m * columns, accumulate);
  }
}

/// The same with vectors of sixteen. kCount divides kChannelUnit, so no rows are left.
template <int kVecs, int kCount>
void multiply_wide_panel_transposed(const float* a, const float* b, float* c, std::int64_t rows,
                                    std::int64_t depth, std::int64_t columns, bool accumulate) {
  for (std::int64_t m = 0; m < rows; m += kCount) {
    panel_product_transposed<16, kVecs, kCount>(a + m, rows, b, columns, depth, c + m * columns,
                                                accumulate);
  }
}

}  // namespace

template <std::int64_t kLanes>
void Products<kLanes>::multiply(const float* a, const float* b, float* c, std::int64_t rows,
                                std::int64_t depth, std::int64_t columns) {
  // A panel of b stays in the first-level cache while the rows of a pass by.
  std::int64_t n = 0;
  for (; n + kPanel <= columns; n += kPanel, b += depth * kPanel) {
    for (std::int64_t m = 0; m < rows; m += kRows) {
      panel_product<kLanes, 2>(a + m * depth, depth, b, c + m * columns + n, columns);
    }
  }
  if constexpr (kPanel > kChannelUnit) {
    if (n == columns) return;
    for (std::int64_t m = 0; m < rows; m += kRows) {
      panel_product<kLanes, 1>(a + m * depth, depth, b, c + m * columns + n, columns);
    }
  }
}

template <>
void Products<8>::multiply_transposed(const float* a, const float* b, float* c, std::int64_t rows,
                                      std::int64_t depth, std::int64_t columns, bool accumulate) {
  for (std::int64_t n = 0; n < columns; n += kPanel) {
    multiply_panel_transposed(a, b + n, c + n, rows, depth, columns, accumulate);
  }
}

template <>
void Products<16>::multiply_transposed(const float* a, const float* b, float* c, std::int64_t rows,
                                       std::int64_t depth, std::int64_t columns, bool accumulate) {
  // Sixteen sums at once in either shape: twice what fills the latency of two multiply-add units.
  std::int64_t n = 0;
  for (; n + kPanel <= columns; n += kPanel) {
    multiply_wide_panel_transposed<2, 8>(a, b + n, c + n, rows, depth, columns, accumulate);
  }
  if (n == columns) return;
  multiply_wide_panel_transposed<1, 16>(a, b + n, c + n, rows, depth, columns, accumulate);
}

template struct Products<8>;
template struct Products<16>;

}  // namespace lockstep::winograd
