#include "backend/cpu/winograd_gemm.h"

#include "backend/cpu/winograd_vec.h"

namespace lockstep::winograd {

namespace {

constexpr std::int64_t kUnroll = 4;  // of the depth; divides kPanel

/// kRows x kPanel sums in registers. `lda` stays a run-time value, but each row has its own
/// pointer: with constant offsets from those in the unrolled loop there is no address arithmetic
/// left between the products.
void panel_product(const float* a, std::int64_t lda, const float* b, float* c, std::int64_t ldc) {
  Vec sum[kRows][2] = {};
  const float* row[kRows];
  unrolled<kRows>([&](int r) { row[r] = a + r * lda; });
  for (std::int64_t k = 0; k < lda; k += kUnroll, b += kUnroll * kPanel) {
    unrolled<kUnroll>([&](int u) __attribute__((always_inline)) {
      const Vec b0 = load(b + u * kPanel);
      const Vec b1 = load(b + u * kPanel + kLanes);
      unrolled<kRows>([&](int r) __attribute__((always_inline)) {
        sum[r][0] += row[r][u] * b0;
        sum[r][1] += row[r][u] * b1;
      });
    });
    unrolled<kRows>([&](int r) { row[r] += kUnroll; });
  }
  unrolled<kRows>([&](int r) {
    store(c + r * ldc, sum[r][0]);
    store(c + r * ldc + kLanes, sum[r][1]);
  });
}

/// kCount x kPanel sums of a^T * b.
template <int kCount>
void panel_product_transposed(const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                              std::int64_t depth, float* c, bool accumulate) {
  Vec sum[kCount][2] = {};
  for (std::int64_t k = 0; k < depth; ++k, a += lda, b += ldb) {
    const Vec b0 = load(b);
    const Vec b1 = load(b + kLanes);
    unrolled<kCount>([&](int r) __attribute__((always_inline)) {
      sum[r][0] += a[r] * b0;
      sum[r][1] += a[r] * b1;
    });
  }
  if (accumulate) {
    unrolled<kCount>([&](int r) {
      sum[r][0] += load(c + r * ldb);
      sum[r][1] += load(c + r * ldb + kLanes);
    });
  }
  unrolled<kCount>([&](int r) {
    store(c + r * ldb, sum[r][0]);
    store(c + r * ldb + kLanes, sum[r][1]);
  });
}

}  // namespace

void multiply(const float* a, const float* b, float* c, std::int64_t rows, std::int64_t depth,
              std::int64_t columns) {
  // A panel of b stays in the first-level cache while the rows of a pass by.
  for (std::int64_t n = 0; n < columns; n += kPanel, b += depth * kPanel) {
    for (std::int64_t m = 0; m < rows; m += kRows) {
      panel_product(a + m * depth, depth, b, c + m * columns + n, columns);
    }
  }
}

void multiply_transposed(const float* a, const float* b, float* c, std::int64_t rows,
                         std::int64_t depth, std::int64_t columns, bool accumulate) {
  // Sixes, and fives for what is not a multiple of six: fewer rows would be too few independent
  // sums to fill the latency of the multiply-add units.
  const std::int64_t sixes = rows - (kRows - rows % kRows) % kRows * (kRows - 1);
  for (std::int64_t n = 0; n < columns; n += kPanel) {
    std::int64_t m = 0;
    for (; m < sixes; m += kRows) {
      panel_product_transposed<kRows>(a + m, rows, b + n, columns, depth, c + m * columns + n,
                                      accumulate);
    }
    for (; m < rows; m += kRows - 1) {
      panel_product_transposed<kRows - 1>(a + m, rows, b + n, columns, depth, c + m * columns + n,
                                          accumulate);
    }
  }
}

}  // namespace lockstep::winograd
