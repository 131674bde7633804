// Average-pooling, over windows of one size or over bins (adaptive); pooling_windows.h says what a
// thread does. Averages over large windows (global pooling) have too few results for that: there a
// block takes 32 channels of one result, and its warps take the window's rows.

#include <cmath>

#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/pooling_windows.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/pack.h"

namespace lockstep::gpu {
namespace {

/// Windows of more positions than this are averaged by a block.
constexpr std::int64_t kLargeWindow = 128;
constexpr int kWarps = 16;  // of such a block
constexpr std::int32_t kLanes = kWarpSize;

/// Windows of one size, each position of which has the same share, also those in the padding.
struct EqualWindows {
  Window window;
  double share;

  EqualWindows(const PoolGeometry& g, const Shape& input)
      : window(g, input), share(1.0 / static_cast<double>(g.kernel_h * g.kernel_w)) {}

  template <typename T>
  __device__ Area below(const Pixel& o, const Images<T>& in) const {
    return area_below<false>(window, o, in);
  }
  template <typename T>
  __device__ Area above(const Pixel& i, const Images<T>& out) const {
    return windows_above<false>(window, i, out);
  }
  __device__ double share_of(const Area&) const { return share; }
  __device__ float share_of(std::int32_t, std::int32_t) const { return static_cast<float>(share); }
};

/// One axis of an adaptive pooling.
struct Bins {
  std::int32_t input, output;
  Divisor by_input, by_output;

  Bins(std::int64_t x, std::int64_t y)
      : input(static_cast<std::int32_t>(x)),
        output(static_cast<std::int32_t>(y)),
        by_input(x),
        by_output(y) {
    LOCKSTEP_CHECK((x + 1) * (y + 1) <= kMaxItems, "adaptive pooling of ", x, " positions to ", y,
                   ": the product may be ", kMaxItems, " at most");
  }

  __device__ Range<std::int32_t> below(std::int32_t o) const {
    return adaptive_bin(o, input, output, by_output);
  }
  __device__ Range<std::int32_t> above(std::int32_t i) const {
    return adaptive_bin(i, output, input, by_input);
  }
};

/// Bins, of which each is an average of its own.
struct AdaptiveBins {
  Bins rows, columns;

  AdaptiveBins(const Shape& x, const Shape& y)
      : rows(x.height(), y.height()), columns(x.width(), y.width()) {}

  template <typename T>
  __device__ Area below(const Pixel& o, const Images<T>&) const {
    return {rows.below(o.y), columns.below(o.x)};
  }
  template <typename T>
  __device__ Area above(const Pixel& i, const Images<T>&) const {
    return {rows.above(i.y), columns.above(i.x)};
  }
  __device__ double share_of(const Area& area) const {
    return 1.0 / static_cast<double>(area.positions());
  }
  __device__ float share_of(std::int32_t oy, std::int32_t ox) const {
    const Area area{rows.below(oy), columns.below(ox)};
    return 1.0F / static_cast<float>(area.positions());
  }
};

/// Rows of the window are summed in fp32, the rows' sums in double, as on the CPU.
template <typename T, int kWidth, typename Windows>
__global__ void average_forward_kernel(Pooling<T, Windows> pool) {
  for_each_pack<kWidth>(pool, [&](std::int32_t row, const Pixel& o, std::int32_t c) {
    const Area area = pool.window.below(o, pool.from);
    const double share = pool.window.share_of(area);
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
template <typename T, typename Windows>
__global__ void large_average_kernel(Pooling<T, Windows> pool, std::int32_t slabs,
                                     Divisor by_slabs) {
  WindowRows& shared = block_shared<WindowRows>();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const auto items = static_cast<std::uint32_t>(pool.pixels * slabs);
  for (std::uint32_t i = blockIdx.x; i < items; i += gridDim.x) {
    const std::int32_t pixel = static_cast<std::int32_t>(i) / by_slabs;
    const std::int32_t c = (static_cast<std::int32_t>(i) - pixel * slabs) * kLanes + lane;
    const std::int32_t read = c < pool.channels ? c : pool.channels - 1;
    const Pixel o = pool.to.pixel(pixel);
    const Area area = pool.window.below(o, pool.from);
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
      pool.to.rows.row(pixel)[c] =
          from_float<T>(static_cast<float>(total * pool.window.share_of(area)));
    }
  }
}

/// Product and sum are fused by hand: the CPU's compiler fuses them too.
template <typename T, int kWidth, typename Windows>
__global__ void average_backward_kernel(Pooling<T, Windows> pool, bool accumulate) {
  for_each_pack<kWidth>(pool, [&](std::int32_t row, const Pixel& in, std::int32_t c) {
    const Area windows = pool.window.above(in, pool.from);
    T* target = pool.to.rows.row(row) + c;
    float sum[kWidth] = {};
    if (accumulate) load_values(target, sum);
    for (std::int32_t oy = windows.rows.begin; oy < windows.rows.end; ++oy) {
      for (std::int32_t ox = windows.columns.begin; ox < windows.columns.end; ++ox) {
        const float share = pool.window.share_of(oy, ox);
        const auto gradient = load_pack<kWidth>(pool.from.at(in.sample, oy, ox) + c);
        for (int k = 0; k < kWidth; ++k) sum[k] = std::fma(gradient[k], share, sum[k]);
      }
    }
    store_rounded(target, sum);
  });
}

template <typename T, typename Windows>
void launch_large(const Context& context, const Pooling<T, Windows>& pool) {
  const std::int32_t slabs = (pool.channels + kLanes - 1) / kLanes;
  launch(
      large_average_kernel<T, Windows>,
      blocks_for(std::int64_t{pool.pixels} * slabs, 1, std::int64_t{4} * context.multiprocessors),
      kWarps * kWarpSize, context.stream, pool, slabs, Divisor(slabs));
}

/// `positions`: of the windows.
template <typename Windows>
void average_forward(const Context& context, const char* operation, const Windows& windows,
                     std::int64_t positions, const Tensor& x, const Tensor& y) {
  with_packs({&x, &y}, [&](auto element, auto width) {
    using T = decltype(element);
    for_image_runs(operation, width, {&x, &y}, [&](std::int64_t n, std::int64_t count) {
      const Pooling<T, Windows> pool(windows, x.sample_range(n, count), y.sample_range(n, count),
                                     width);
      if (positions <= kLargeWindow) {
        launch_loop(context, pool.items(), average_forward_kernel<T, width(), Windows>, pool);
      } else {
        launch_large(context, pool);
      }
    });
  });
}

template <typename Windows>
void average_backward(const Context& context, const char* operation, const Windows& windows,
                      const Tensor& grad_y, const Tensor& grad_x, bool accumulate) {
  with_packs({&grad_y, &grad_x}, [&](auto element, auto width) {
    using T = decltype(element);
    for_image_runs(operation, width, {&grad_y, &grad_x}, [&](std::int64_t n, std::int64_t count) {
      const Pooling<T, Windows> pool(windows, grad_y.sample_range(n, count),
                                     grad_x.sample_range(n, count), width);
      launch_loop(context, pool.items(), average_backward_kernel<T, width(), Windows>, pool,
                  accumulate);
    });
  });
}

}  // namespace

void GpuPooling::avg_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y) {
  check_avg_pool_forward(geometry, x, y);
  const Context& context = context_.entered();
  if (x.shape.elements() == 0) return;
  average_forward(context, "avg_pool_forward", EqualWindows(geometry, x.shape),
                  geometry.kernel_h * geometry.kernel_w, x, y);
}

void GpuPooling::avg_pool_backward(const PoolGeometry& geometry, const Tensor& grad_y,
                                   const Tensor& grad_x, bool accumulate) {
  check_avg_pool_backward(geometry, grad_y, grad_x);
  const Context& context = context_.entered();
  if (grad_x.shape.elements() == 0) return;
  average_backward(context, "avg_pool_backward", EqualWindows(geometry, grad_x.shape), grad_y,
                   grad_x, accumulate);
}

void GpuPooling::adaptive_avg_pool_forward(const Tensor& x, const Tensor& y) {
  check_resize_forward("adaptive_avg_pool_forward", x, y);
  const Context& context = context_.entered();
  if (x.shape.elements() == 0) return;
  average_forward(context, "adaptive_avg_pool_forward", AdaptiveBins(x.shape, y.shape),
                  x.shape.rows_per_sample() / y.shape.rows_per_sample(), x, y);
}

void GpuPooling::adaptive_avg_pool_backward(const Tensor& grad_y, const Tensor& grad_x,
                                            bool accumulate) {
  check_resize_backward("adaptive_avg_pool_backward", grad_y, grad_x);
  const Context& context = context_.entered();
  if (grad_x.shape.elements() == 0) return;
  average_backward(context, "adaptive_avg_pool_backward", AdaptiveBins(grad_x.shape, grad_y.shape),
                   grad_y, grad_x, accumulate);
}

}  // namespace lockstep::gpu
