// Max-pooling; pooling_windows.h says what a thread does.

#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/pooling_windows.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/pack.h"

namespace lockstep::gpu {
namespace {

/// Where input pixel (iy, ix) lies in window (oy, ox).
__device__ std::int32_t window_position(const Window& g, std::int32_t iy, std::int32_t ix,
                                        std::int32_t oy, std::int32_t ox) {
  return (iy + g.padding_h - oy * g.stride_h) * g.kernel_w + (ix + g.padding_w - ox * g.stride_w);
}

template <typename T, int kWidth, bool kTwoByTwo>
__global__ void max_forward_kernel(Pooling<T> pool, Images<std::uint8_t> positions) {
  const Window g = kTwoByTwo ? Window{} : pool.window;
  for_each_pack<kWidth>(pool, [&](std::int32_t row, const Pixel& o, std::int32_t c) {
    const Area area = area_below<kTwoByTwo>(g, o, pool.from);
    float best[kWidth] = {};
    std::int32_t winners[kWidth] = {};
    bool first = true;
    for (std::int32_t iy = area.rows.begin; iy < area.rows.end; ++iy) {
      for (std::int32_t ix = area.columns.begin; ix < area.columns.end; ++ix) {
        const auto x = load_pack<kWidth>(pool.from.at(o.sample, iy, ix) + c);
        const std::int32_t position = window_position(g, iy, ix, o.y, o.x);
        for (int k = 0; k < kWidth; ++k) {
          const bool better = first || wins(x[k], best[k]);
          best[k] = better ? x[k] : best[k];
          winners[k] = better ? position : winners[k];
        }
        first = false;
      }
    }
    store_rounded(pool.to.rows.row(row) + c, best);
    Pack<std::uint8_t, kWidth> bytes = {};
    for (int k = 0; k < kWidth; ++k) bytes.set(k, static_cast<std::uint8_t>(winners[k]));
    store_pack(positions.rows.row(row) + c, bytes);
  });
}

template <typename T, int kWidth, bool kTwoByTwo>
__global__ void max_backward_kernel(Pooling<T> pool, Images<const std::uint8_t> positions,
                                    bool accumulate) {
  const Window g = kTwoByTwo ? Window{} : pool.window;
  for_each_pack<kWidth>(pool, [&](std::int32_t row, const Pixel& in, std::int32_t c) {
    const Area windows = windows_above<kTwoByTwo>(g, in, pool.from);
    T* target = pool.to.rows.row(row) + c;
    float sum[kWidth] = {};
    if (accumulate) load_values(target, sum);
    for (std::int32_t oy = windows.rows.begin; oy < windows.rows.end; ++oy) {
      for (std::int32_t ox = windows.columns.begin; ox < windows.columns.end; ++ox) {
        const auto gradient = load_pack<kWidth>(pool.from.at(in.sample, oy, ox) + c);
        const auto winners = load_pack<kWidth>(positions.at(in.sample, oy, ox) + c);
        const std::int32_t position = window_position(g, in.y, in.x, oy, ox);
        for (int k = 0; k < kWidth; ++k) {
          sum[k] += winners.element(k) == position ? gradient[k] : 0.0F;
        }
      }
    }
    store_rounded(target, sum);
  });
}

}  // namespace

void GpuPooling::max_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y,
                                  const Tensor& winners) {
  check_max_pool_forward(geometry, x, y, winners);
  const Context& context = context_.entered();
  if (x.shape.elements() == 0) return;
  with_packs({&x, &y, &winners}, [&](auto element, auto width) {
    using T = decltype(element);
    const auto kernel = geometry == PoolGeometry{} ? max_forward_kernel<T, width(), true>
                                                   : max_forward_kernel<T, width(), false>;
    const Window window(geometry, x.shape);
    for_image_runs("max_pool_forward", width, {&x, &y}, [&](std::int64_t n, std::int64_t count) {
      const Pooling<T> pool(window, x.sample_range(n, count), y.sample_range(n, count), width);
      launch_loop(context, pool.items(), kernel, pool,
                  Images<std::uint8_t>(winners.sample_range(n, count)));
    });
  });
}

void GpuPooling::max_pool_backward(const PoolGeometry& geometry, const Tensor& winners,
                                   const Tensor& grad_y, const Tensor& grad_x, bool accumulate) {
  check_max_pool_backward(geometry, winners, grad_y, grad_x);
  const Context& context = context_.entered();
  if (grad_x.shape.elements() == 0) return;
  with_packs({&grad_y, &grad_x, &winners}, [&](auto element, auto width) {
    using T = decltype(element);
    const auto kernel = geometry == PoolGeometry{} ? max_backward_kernel<T, width(), true>
                                                   : max_backward_kernel<T, width(), false>;
    const Window window(geometry, grad_x.shape);
    for_image_runs(
        "max_pool_backward", width, {&grad_y, &grad_x}, [&](std::int64_t n, std::int64_t count) {
          const Pooling<T> pool(window, grad_y.sample_range(n, count),
                                grad_x.sample_range(n, count), width);
          launch_loop(context, pool.items(), kernel, pool,
                      Images<const std::uint8_t>(winners.sample_range(n, count)), accumulate);
        });
  });
}

}  // namespace lockstep::gpu
