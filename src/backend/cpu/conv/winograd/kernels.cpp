// The transforms of the weights and of their gradient.

#include <algorithm>

#include "backend/cpu/conv/products/products.h"
#include "backend/cpu/conv/winograd/transforms.h"
#include "backend/cpu/simd.h"

namespace lockstep::winograd {

using namespace matmul;
using namespace simd;

namespace {

// Eight lanes whatever the width of the products: the nine values of a kernel fill one vector of
// eight and leave one over, and the transforms of kernels are a small part of a convolution.
constexpr std::int64_t kLanes = kKernelLanes;
Vec8 load(const float* from) { return simd::load<kLanes>(from); }
void store(float* to, Vec8 v) { simd::store<kLanes>(to, v); }

/// Four values down a column of transformed points.
struct Column {
  Vec8 v0, v1, v2, v3;
};

/// G g of three values.
Column kernel_column(Vec8 g0, Vec8 g1, Vec8 g2) {
  const Vec8 even = 0.5F * (g0 + g2);
  const Vec8 odd = 0.5F * g1;
  return {g0, even + odd, even - odd, g2};
}

/// G^T q of four values.
struct Triple {
  Vec8 v0, v1, v2;
};
Triple kernel_triple(Vec8 q0, Vec8 q1, Vec8 q2, Vec8 q3) {
  const Vec8 even = 0.5F * (q1 + q2);
  return {q0 + even, 0.5F * (q1 - q2), even + q3};
}

/// body(lane) for the first `count` lanes; without a loop for whole vectors, which then stay in
/// registers.
template <class Body>
void for_each_lane(std::int64_t count, Body&& body) {
  if (count == kLanes) {
    unrolled<kLanes>(body);
  } else {
    for (std::int64_t lane = 0; lane < count; ++lane) body(lane);
  }
}

/// The nine values of up to eight kernels that lie `lane_stride` apart, one kernel per lane.
struct Kernels {
  Vec8 g[9];
};
Kernels load_kernels(const float* from, std::int64_t lane_stride, std::int64_t count) {
  Vec8 rows[kLanes] = {};  // the first eight values of each kernel, then of each position
  Vec8 ninth{};
  for_each_lane(
      count, [&](std::int64_t lane) __attribute__((always_inline)) {
        rows[lane] = load(from + lane * lane_stride);
        ninth[lane] = from[lane * lane_stride + 8];
      });
  transpose(rows);
  return {rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7], ninth};
}

/// G g G^T.
void store_kernel_points(const Kernels& k, float* to, std::int64_t stride) {
  const Column c0 = kernel_column(k.g[0], k.g[3], k.g[6]);
  const Column c1 = kernel_column(k.g[1], k.g[4], k.g[7]);
  const Column c2 = kernel_column(k.g[2], k.g[5], k.g[8]);
  const auto store_points = [&](float* row, Vec8 g0, Vec8 g1, Vec8 g2) {
    const Column points = kernel_column(g0, g1, g2);
    store(row, points.v0);
    store(row + stride, points.v1);
    store(row + 2 * stride, points.v2);
    store(row + 3 * stride, points.v3);
  };
  store_points(to, c0.v0, c1.v0, c2.v0);
  store_points(to + 4 * stride, c0.v1, c1.v1, c2.v1);
  store_points(to + 8 * stride, c0.v2, c1.v2, c2.v2);
  store_points(to + 12 * stride, c0.v3, c1.v3, c2.v3);
}

}  // namespace

void transform_kernels(const KernelSource& source, std::int64_t first_lane, const PointKernels& u) {
  const std::int64_t count = std::clamp<std::int64_t>(source.lanes - first_lane, 0, kLanes);
  const float* from = source.data + first_lane * source.lane_stride;
  const std::int64_t panel = first_lane / u.panel * u.panel;
  const std::int64_t width = std::min(u.panel, u.lanes - panel);
  float* to = u.data + panel * u.depth + first_lane - panel;
  for (std::int64_t k = 0; k < u.depth; ++k, from += source.depth_stride, to += width) {
    Kernels kernels{};
    if (k < source.depth) kernels = load_kernels(from, source.lane_stride, count);
    if (source.rotated) std::reverse(kernels.g, kernels.g + 9);
    store_kernel_points(kernels, to, u.stride);
  }
}

void kernel_gradients(const float* q, std::int64_t stride, std::int64_t channels, bool add,
                      float* values) {
  for (std::int64_t c = 0; c < channels; c += kLanes) {
    Triple column[4];
    for (int j = 0; j < 4; ++j) {
      const auto point = [&](int i) { return load(q + (4 * i + j) * stride + c); };
      column[j] = kernel_triple(point(0), point(1), point(2), point(3));
    }
    const auto put = [&](Vec8 Triple::*v, float* to) {
      const Triple row = kernel_triple(column[0].*v, column[1].*v, column[2].*v, column[3].*v);
      const Vec8 triple[3] = {row.v0, row.v1, row.v2};
      for (int k = 0; k < 3; ++k, to += channels) store(to, add ? load(to) + triple[k] : triple[k]);
    };
    put(&Triple::v0, values + c);
    put(&Triple::v1, values + 3 * channels + c);
    put(&Triple::v2, values + 6 * channels + c);
  }
}

}  // namespace lockstep::winograd
