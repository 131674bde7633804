// Average-pooling; pooling_windows.h says what a thread does. Averages over large windows (global
// pooling) have too few results for that: there a block takes 32 channels of one result, and its
// warps take the window's rows.

#include <cmath>

#include "backend/operand_checks.h"
#include "kernels/operations/pooling.h"
#include "kernels/operations/pooling_windows.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/pack.h"

namespace lockstep::gpu {
namespace {

/// Windows of more positions than this are averaged by a block.
constexpr std::int64_t kLargeWindow = 128;
constexpr int kWarps = 16;  // of such a block
constexpr std::int32_t kLanes = kWarpSize;

/// Rows of the window are summed in fp32, the rows' sums in double, as on the CPU. `share`: of a
/// position.
template <typename T, int kWidth>
__global__ void average_forward_kernel(Pooling<T> pool, double share) {
  for_each_pack<kWidth>(pool, [&](std::int32_t row, const Pixel& o, std::int32_t c) {
    const Area area = area_below<false>(pool.window, o, pool.from);
    double sums[kWidth] = {};
    for (std::int32_t iy = area.rows.begin; iy < area.rows.end; ++iy) {
      float line[kWidth] = {};
      for (std::int32_t ix = area.columns.begin; ix < area.columns.end; ++ix) {
        const auto x = load_pack<kWidth>(pool.from.at(o.sample, iy, ix) + c);
        for (int k = 0; k < kWidth; ++k) line[k] += x[k];
      }
      for (int k = 0; k < kWidth; ++k) sums[k] += static_cast<double>(line[k]);
    }
    float y[kWidth];
    for (int k = 0; k < kWidth; ++k) y[k] = static_cast<float>(sums[k] * share);
    store_rounded(pool.to.rows.row(row) + c, y);
  });
}

struct WindowRows {
  float sums[kWarps][kLanes];
};

/// The same sums in the same order; warps take rows, and the first warp adds up what they found.
template <typename T>
__global__ void large_average_kernel(Pooling<T> pool, std::int32_t slabs, Divisor by_slabs,
                                     double share) {
  WindowRows& shared = block_shared<WindowRows>();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const auto items = static_cast<std::uint32_t>(pool.pixels * slabs);
  for (std::uint32_t i = blockIdx.x; i < items; i += gridDim.x) {
    const std::int32_t pixel = static_cast<std::int32_t>(i) / by_slabs;
    const std::int32_t c = (static_cast<std::int32_t>(i) - pixel * slabs) * kLanes + lane;
    const std::int32_t read = c < pool.channels ? c : pool.channels - 1;
    const Pixel o = pool.to.pixel(pixel);
    const Area area = area_below<false>(pool.window, o, pool.from);
    double total = 0;
    for (std::int32_t begin = area.rows.begin; begin < area.rows.end; begin += kWarps) {
      const std::int32_t count = area.rows.end - begin < kWarps ? area.rows.end - begin : kWarps;
      float line = 0;
      if (warp < count) {
        for (std::int32_t ix = area.columns.begin; ix < area.columns.end; ++ix) {
          line += to_float(pool.from.at(o.sample, begin + warp, ix)[read]);
        }
      }
      shared.sums[warp][lane] = line;
      __syncthreads();
      if (warp == 0) {
        for (int w = 0; w < count; ++w) total += static_cast<double>(shared.sums[w][lane]);
      }
      __syncthreads();
    }
    if (warp == 0 && c < pool.channels) {
      pool.to.rows.row(pixel)[c] = from_float<T>(static_cast<float>(total * share));
    }
  }
}

/// Product and sum are fused by hand: the CPU's compiler fuses them too.
template <typename T, int kWidth>
__global__ void average_backward_kernel(Pooling<T> pool, float share, bool accumulate) {
  for_each_pack<kWidth>(pool, [&](std::int32_t row, const Pixel& in, std::int32_t c) {
    const Area windows = windows_above<false>(pool.window, in, pool.from);
    T* target = pool.to.rows.row(row) + c;
    float sum[kWidth] = {};
    if (accumulate) load_values(target, sum);
    for (std::int32_t oy = windows.rows.begin; oy < windows.rows.end; ++oy) {
      for (std::int32_t ox = windows.columns.begin; ox < windows.columns.end; ++ox) {
        const auto gradient = load_pack<kWidth>(pool.from.at(in.sample, oy, ox) + c);
        for (int k = 0; k < kWidth; ++k) sum[k] = std::fma(gradient[k], share, sum[k]);
      }
    }
    store_rounded(target, sum);
  });
}

template <typename T>
void launch_large(const Context& context, const Pooling<T>& pool, double share) {
  const std::int32_t slabs = (pool.channels + kLanes - 1) / kLanes;
  launch(
      large_average_kernel<T>,
      blocks_for(std::int64_t{pool.pixels} * slabs, 1, std::int64_t{4} * context.multiprocessors),
      kWarps * kWarpSize, context.stream, pool, slabs, Divisor(slabs), share);
}

double share_of(const PoolGeometry& g) {
  return 1.0 / static_cast<double>(g.kernel_h * g.kernel_w);
}

}  // namespace

void avg_pool_forward(const Context& context, const PoolGeometry& geometry, const Tensor& x,
                      const Tensor& y) {
  if (x.shape.elements() == 0) return;
  check_pool(geometry, x.shape, y.shape);
  check_same_type("avg_pool_forward", {&x, &y});
  with_packs({&x, &y}, [&](auto element, auto width) {
    using T = decltype(element);
    const Window window(geometry, x.shape);
    for_image_runs("avg_pool_forward", width, {&x, &y}, [&](std::int64_t n, std::int64_t count) {
      const Pooling<T> pool(window, x.sample_range(n, count), y.sample_range(n, count), width);
      if (geometry.kernel_h * geometry.kernel_w <= kLargeWindow) {
        launch_loop(context, pool.items(), average_forward_kernel<T, width()>, pool,
                    share_of(geometry));
      } else {
        launch_large(context, pool, share_of(geometry));
      }
    });
  });
}

void avg_pool_backward(const Context& context, const PoolGeometry& geometry, const Tensor& grad_y,
                       const Tensor& grad_x, bool accumulate) {
  if (grad_x.shape.elements() == 0) return;
  check_pool(geometry, grad_x.shape, grad_y.shape);
  check_same_type("avg_pool_backward", {&grad_y, &grad_x});
  with_packs({&grad_y, &grad_x}, [&](auto element, auto width) {
    using T = decltype(element);
    const Window window(geometry, grad_x.shape);
    for_image_runs("avg_pool_backward", width, {&grad_y, &grad_x},
                   [&](std::int64_t n, std::int64_t count) {
                     const Pooling<T> pool(window, grad_y.sample_range(n, count),
                                           grad_x.sample_range(n, count), width);
                     launch_loop(context, pool.items(), average_backward_kernel<T, width()>, pool,
                                 static_cast<float>(share_of(geometry)), accumulate);
                   });
  });
}

}  // namespace lockstep::gpu
