#pragma once
// Winograd's minimal filtering F(m x m, 3x3) (Lavin and Gray 2016, arXiv:1509.09308), one dimension
// of it: m outputs Y of a 3x3 kernel g come from m + 2 inputs d by m + 2 products instead of 3m,
//
//   Y = A^T [(G g) . (B^T d)]        (. is element by element; summed over channels before A)
//
// and, transposing that, the gradient of the kernel is G^T [(A dY) . (B^T d)], summed over tiles.
// In two dimensions each matrix is applied to columns and to rows.
//
// Each point p of the m + 1 that a filter is made of (Vincent et al. 2017, "On Improving the
// Numerical Stability of Winograd Convolutions") has the row (1, p, p^2) / N(p) in G and the column
// (1, p, ..., p^(m-1)) in A^T, N(p) the product of its distances from the others; one more lies at
// infinity.

#include "backend/cpu/simd.h"

namespace lockstep::winograd {

/// F(m x m, 3x3) for m = kTile. V: a vector of floats, or a float.
template <int kTile>
struct Filter;

/// Of the points 0, 1 and -1:
///
///         | 1  0 -1  0 |        |  1   0   0  |          | 1  1  1  0 |
///   B^T = | 0  1  1  0 |    G = | 1/2 1/2 1/2 |    A^T = | 0  1 -1 -1 |
///         | 0 -1  1  0 |        | 1/2-1/2 1/2 |
///         | 0  1  0 -1 |        |  0   0   1  |
///
/// The only factors are 1 and 1/2, so that the rounding error is that of a direct convolution.
template <>
struct Filter<2> {
  /// B^T d.
  template <class V>
  static void input(const V (&d)[4], V (&v)[4]) {
    v[0] = d[0] - d[2];
    v[1] = d[1] + d[2];
    v[2] = d[2] - d[1];
    v[3] = d[1] - d[3];
  }
  /// A^T m.
  template <class V>
  static void output(const V (&m)[4], V (&y)[2]) {
    y[0] = m[0] + m[1] + m[2];
    y[1] = m[1] - m[2] - m[3];
  }
  /// A y.
  template <class V>
  static void output_gradient(const V (&y)[2], V (&z)[4]) {
    z[0] = y[0];
    z[1] = y[0] + y[1];
    z[2] = y[0] - y[1];
    z[3] = -y[1];
  }
  /// G g.
  template <class V>
  static void kernel(const V (&g)[3], V (&u)[4]) {
    const V even = 0.5F * (g[0] + g[2]);
    const V odd = 0.5F * g[1];
    u[0] = g[0];
    u[1] = even + odd;
    u[2] = even - odd;
    u[3] = g[2];
  }
  /// G^T q.
  template <class V>
  static void kernel_gradient(const V (&q)[4], V (&g)[3]) {
    const V even = 0.5F * (q[1] + q[2]);
    g[0] = q[0] + even;
    g[1] = 0.5F * (q[1] - q[2]);
    g[2] = even + q[3];
  }
};

/// Of the points 0, a, -a, b, -b:
///
///         | a^2b^2    0  -(a^2+b^2)      0      1  0 |          | 1  1   1   1   1   0 |
///         |   0   -+ab^2    -b^2        +-a     1  0 |    A^T = | 0  a  -a   b  -b   0 |
///   B^T = |   0   -+a^2b    -a^2        +-b     1  0 |          | 0 a^2 a^2 b^2 b^2  0 |
///         |   0    a^2b^2     0     -(a^2+b^2)  0  1 |          | 0 a^3-a^3 b^3-b^3  1 |
///
/// Of a = 1, b = 2, which are usual, results are four times as far from the sum as those of a
/// direct convolution in fp32 (256 channels of normal values); of these two less than twice.
template <>
struct Filter<4> {
  template <class V>
  static void input(const V (&d)[6], V (&v)[6]) {
    const V even_a = d[4] - kB2 * d[2], odd_a = kA * (d[3] - kB2 * d[1]);
    const V even_b = d[4] - kA2 * d[2], odd_b = kB * (d[3] - kA2 * d[1]);
    v[0] = kA2 * kB2 * d[0] - (kA2 + kB2) * d[2] + d[4];
    v[1] = even_a + odd_a;
    v[2] = even_a - odd_a;
    v[3] = even_b + odd_b;
    v[4] = even_b - odd_b;
    v[5] = kA2 * kB2 * d[1] - (kA2 + kB2) * d[3] + d[5];
  }
  template <class V>
  static void output(const V (&m)[6], V (&y)[4]) {
    const V even_a = m[1] + m[2], odd_a = kA * (m[1] - m[2]);
    const V even_b = m[3] + m[4], odd_b = kB * (m[3] - m[4]);
    y[0] = m[0] + even_a + even_b;
    y[1] = odd_a + odd_b;
    y[2] = kA2 * even_a + kB2 * even_b;
    y[3] = kA2 * odd_a + kB2 * odd_b + m[5];
  }
  template <class V>
  static void output_gradient(const V (&y)[4], V (&z)[6]) {
    const V even_a = y[0] + kA2 * y[2], odd_a = kA * (y[1] + kA2 * y[3]);
    const V even_b = y[0] + kB2 * y[2], odd_b = kB * (y[1] + kB2 * y[3]);
    z[0] = y[0];
    z[1] = even_a + odd_a;
    z[2] = even_a - odd_a;
    z[3] = even_b + odd_b;
    z[4] = even_b - odd_b;
    z[5] = y[3];
  }
  template <class V>
  static void kernel(const V (&g)[3], V (&u)[6]) {
    const V even_a = g[0] + kA2 * g[2], odd_a = kA * g[1];
    const V even_b = g[0] + kB2 * g[2], odd_b = kB * g[1];
    u[0] = kOf0 * g[0];
    u[1] = kOfA * (even_a + odd_a);
    u[2] = kOfA * (even_a - odd_a);
    u[3] = kOfB * (even_b + odd_b);
    u[4] = kOfB * (even_b - odd_b);
    u[5] = g[2];
  }
  template <class V>
  static void kernel_gradient(const V (&q)[6], V (&g)[3]) {
    const V even_a = kOfA * (q[1] + q[2]), odd_a = kOfA * (q[1] - q[2]);
    const V even_b = kOfB * (q[3] + q[4]), odd_b = kOfB * (q[3] - q[4]);
    g[0] = kOf0 * q[0] + even_a + even_b;
    g[1] = kA * odd_a + kB * odd_b;
    g[2] = kA2 * even_a + kB2 * even_b + q[5];
  }

 private:
  static constexpr float kA = 0.75F, kB = 1.5F, kA2 = kA * kA, kB2 = kB * kB;
  // 1 / N of the points.
  static constexpr float kOf0 = 1 / (kA2 * kB2);
  static constexpr float kOfA = 1 / (2 * kA2 * (kA2 - kB2)), kOfB = 1 / (2 * kB2 * (kB2 - kA2));
};

/// A transform in two dimensions: kOf of the columns of value(row, column), then of the rows of
/// what comes out, which store(row, column, value) gets. Both are called with constants.
template <auto kOf, int kFrom, int kTo, class V, class Value, class Store>
[[gnu::always_inline]] inline void transform(Value&& value, Store&& store) {
  V columns[kFrom][kTo];
  simd::unrolled<kFrom>([&](int j) __attribute__((always_inline)) {
    V column[kFrom];
    simd::unrolled<kFrom>([&](int i) __attribute__((always_inline)) { column[i] = value(i, j); });
    kOf(column, columns[j]);
  });
  simd::unrolled<kTo>([&](int i) __attribute__((always_inline)) {
    V row[kFrom], out[kTo];
    simd::unrolled<kFrom>([&](int j) __attribute__((always_inline)) { row[j] = columns[j][i]; });
    kOf(row, out);
    simd::unrolled<kTo>([&](int j) __attribute__((always_inline)) { store(i, j, out[j]); });
  });
}

}  // namespace lockstep::winograd
