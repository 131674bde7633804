// The transforms of the weights and of their gradient.

#include <algorithm>
#include <cstring>

#include "backend/cpu/conv/products/products.h"
#include "backend/cpu/conv/winograd/filter.h"
#include "backend/cpu/conv/winograd/transforms.h"
#include "backend/cpu/simd.h"

namespace lockstep::winograd {

using namespace matmul;
using namespace simd;

namespace {

// A cache line of lanes, so that every point's is written as a whole.
constexpr std::int64_t kLanes = kKernelLanes;
using Lanes = Vec<kLanes>;

/// The nine values of up to kLanes kernels that lie `lane_stride` apart, one kernel per lane.
struct Kernels {
  Lanes g[9];
};
Kernels load_kernels(const float* from, std::int64_t lane_stride, std::int64_t count) {
  Kernels kernels{};
  for (std::int64_t first = 0; first < count; first += 8) {
    Vec8 rows[8] = {};  // the first eight values of each kernel, then of each position
    for (std::int64_t lane = 0; lane < std::min<std::int64_t>(8, count - first); ++lane) {
      const float* kernel = from + (first + lane) * lane_stride;
      rows[lane] = load<8>(kernel);
      kernels.g[8][first + lane] = kernel[8];
    }
    transpose(rows);
    for (int k = 0; k < 8; ++k) {
      std::memcpy(reinterpret_cast<float*>(&kernels.g[k]) + first, &rows[k], sizeof rows[k]);
    }
  }
  return kernels;
}

}  // namespace

template <int kTile>
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
    transform<Filter<kTile>::template kernel<Lanes>, 3, kTile + 2, Lanes>(
        [&](int i, int j) { return kernels.g[3 * i + j]; },
        [&](int i, int j, Lanes value) {
          store<kLanes>(to + (i * (kTile + 2) + j) * u.stride, value);
        });
  }
}

template <int kTile>
void kernel_gradients(const float* q, std::int64_t stride, std::int64_t channels, bool add,
                      float* values) {
  for (std::int64_t c = 0; c < channels; c += kLanes) {
    transform<Filter<kTile>::template kernel_gradient<Lanes>, kTile + 2, 3, Lanes>(
        [&](int i, int j) { return load<kLanes>(q + (i * (kTile + 2) + j) * stride + c); },
        [&](int i, int j, Lanes value) {
          float* to = values + (3 * i + j) * channels + c;
          store<kLanes>(to, add ? load<kLanes>(to) + value : value);
        });
  }
}

template void transform_kernels<2>(const KernelSource&, std::int64_t, const PointKernels&);
template void transform_kernels<4>(const KernelSource&, std::int64_t, const PointKernels&);
template void kernel_gradients<2>(const float*, std::int64_t, std::int64_t, bool, float*);
template void kernel_gradients<4>(const float*, std::int64_t, std::int64_t, bool, float*);

}  // namespace lockstep::winograd
