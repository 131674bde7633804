// Max- and average-pooling. One thread takes one pack of channels of one pixel that is written, the
// grid all of them in memory order. Forward reads the pixel's window; backward gathers from the
// windows that cover the pixel, in the CPU's order, so that no two threads write the same value.
// Averages over large windows (global pooling) have too few results for that: there a block takes
// 32 channels of one result, and its warps take the window's rows.

#include <cmath>

#include "kernels/operations/pooling.h"
#include "kernels/primitives/pack.h"
#include "lockstep/backend/formulas.h"
#include "lockstep/backend/operand_checks.h"

namespace lockstep::gpu {
namespace {

/// Windows of more positions than this are averaged by a block.
constexpr std::int64_t kLargeWindow = 128;
constexpr int kWarps = 16;  // of such a block
constexpr std::int64_t kLanes = kWarpSize;

/// Pixels of a batch.
template <typename T>
struct Image {
  T* data;
  std::int64_t height, width, row_stride;

  __device__ T* pixel(std::int64_t sample, std::int64_t y, std::int64_t x) const {
    return data + ((sample * height + y) * width + x) * row_stride;
  }
};

template <typename T>
Image<T> image_of(const Tensor& tensor, T* data) {
  return {data, tensor.shape.height(), tensor.shape.width(), tensor.row_stride};
}

struct MaxForward {
  PoolGeometry window;
  std::int64_t pixels, channels;  // of y
  Image<const float> x;
  Image<float> y;
  Image<std::uint8_t> winners;
};

struct MaxBackward {
  PoolGeometry window;
  std::int64_t pixels, channels;  // of grad_x
  Image<const std::uint8_t> winners;
  Image<const float> grad_y;
  Image<float> grad_x;
  bool accumulate;
};

struct AverageForward {
  PoolGeometry window;
  std::int64_t pixels, channels;  // of y
  Image<const float> x;
  Image<float> y;
  double share;  // of a position
};

struct AverageBackward {
  PoolGeometry window;
  std::int64_t pixels, channels;  // of grad_x
  Image<const float> grad_y;
  Image<float> grad_x;
  float share;
  bool accumulate;
};

struct Pixel {
  std::int64_t sample, y, x;
};
template <typename T>
__device__ Pixel pixel_of(std::int64_t index, const Image<T>& image) {
  const std::int64_t row = index / image.width;
  const std::int64_t sample = row / image.height;
  return {sample, row - sample * image.height, index - row * image.width};
}

/// The part of a window that lies in the input; 2x2 windows always do, and their extents are known
/// to the compiler.
struct Area {
  IndexRange rows, columns;
};
template <bool kTwoByTwo, typename T>
__device__ Area area_below(const PoolGeometry& g, const Pixel& o, const Image<T>& in) {
  if constexpr (kTwoByTwo) return {{2 * o.y, 2 * o.y + 2}, {2 * o.x, 2 * o.x + 2}};
  return {covered_inputs(o.y, g.kernel_h, g.stride_h, g.padding_h, in.height),
          covered_inputs(o.x, g.kernel_w, g.stride_w, g.padding_w, in.width)};
}

/// The windows that cover an input pixel: of 2x2, one or, at the rest of an odd extent, none.
template <bool kTwoByTwo, typename T>
__device__ Area windows_above(const PoolGeometry& g, const Pixel& i, const Image<T>& out) {
  if constexpr (kTwoByTwo) {
    const std::int64_t y = i.y / 2, x = i.x / 2;
    return {{y, y < out.height ? y + 1 : y}, {x, x < out.width ? x + 1 : x}};
  }
  return {covering_windows(i.y, g.kernel_h, g.stride_h, g.padding_h, out.height),
          covering_windows(i.x, g.kernel_w, g.stride_w, g.padding_w, out.width)};
}

/// Where input pixel (iy, ix) lies in window (oy, ox).
__device__ std::int32_t window_position(const PoolGeometry& g, std::int64_t iy, std::int64_t ix,
                                        std::int64_t oy, std::int64_t ox) {
  return static_cast<std::int32_t>((iy + g.padding_h - oy * g.stride_h) * g.kernel_w +
                                   (ix + g.padding_w - ox * g.stride_w));
}

template <int kWidth, bool kTwoByTwo>
__global__ void max_forward_kernel(MaxForward pool) {
  const PoolGeometry g = kTwoByTwo ? PoolGeometry{} : pool.window;
  const std::int64_t packs = pool.channels / kWidth;
  for (std::int64_t i = first_item(); i < pool.pixels * packs; i += item_stride()) {
    const std::int64_t index = i / packs;
    const std::int64_t c = (i - index * packs) * kWidth;
    const Pixel o = pixel_of(index, pool.y);
    const Area area = area_below<kTwoByTwo>(g, o, pool.x);
    Pack<float, kWidth> best{};
    Pack<std::uint8_t, kWidth> winners{};
    bool first = true;
    for (std::int64_t iy = area.rows.begin; iy < area.rows.end; ++iy) {
      for (std::int64_t ix = area.columns.begin; ix < area.columns.end; ++ix) {
        const auto x = load_pack<kWidth>(pool.x.pixel(o.sample, iy, ix) + c);
        const auto position = static_cast<std::uint8_t>(window_position(g, iy, ix, o.y, o.x));
        for (int k = 0; k < kWidth; ++k) {
          const bool better = first || wins(x.values[k], best.values[k]);
          best.values[k] = better ? x.values[k] : best.values[k];
          winners.values[k] = better ? position : winners.values[k];
        }
        first = false;
      }
    }
    store_pack<kWidth>(pool.y.pixel(o.sample, o.y, o.x) + c, best);
    store_pack<kWidth>(pool.winners.pixel(o.sample, o.y, o.x) + c, winners);
  }
}

template <int kWidth, bool kTwoByTwo>
__global__ void max_backward_kernel(MaxBackward pool) {
  const PoolGeometry g = kTwoByTwo ? PoolGeometry{} : pool.window;
  const std::int64_t packs = pool.channels / kWidth;
  for (std::int64_t i = first_item(); i < pool.pixels * packs; i += item_stride()) {
    const std::int64_t index = i / packs;
    const std::int64_t c = (i - index * packs) * kWidth;
    const Pixel in = pixel_of(index, pool.grad_x);
    const Area windows = windows_above<kTwoByTwo>(g, in, pool.grad_y);
    float* target = pool.grad_x.pixel(in.sample, in.y, in.x) + c;
    Pack<float, kWidth> sum{};
    if (pool.accumulate) sum = load_pack<kWidth>(static_cast<const float*>(target));
    for (std::int64_t oy = windows.rows.begin; oy < windows.rows.end; ++oy) {
      for (std::int64_t ox = windows.columns.begin; ox < windows.columns.end; ++ox) {
        const auto gradient = load_pack<kWidth>(pool.grad_y.pixel(in.sample, oy, ox) + c);
        const auto winners = load_pack<kWidth>(pool.winners.pixel(in.sample, oy, ox) + c);
        const std::int32_t position = window_position(g, in.y, in.x, oy, ox);
        for (int k = 0; k < kWidth; ++k) {
          sum.values[k] += winners.values[k] == position ? gradient.values[k] : 0.0F;
        }
      }
    }
    store_pack<kWidth>(target, sum);
  }
}

/// Rows of the window are summed in fp32, the rows' sums in double, as on the CPU.
template <int kWidth>
__global__ void average_forward_kernel(AverageForward pool) {
  const std::int64_t packs = pool.channels / kWidth;
  for (std::int64_t i = first_item(); i < pool.pixels * packs; i += item_stride()) {
    const std::int64_t index = i / packs;
    const std::int64_t c = (i - index * packs) * kWidth;
    const Pixel o = pixel_of(index, pool.y);
    const Area area = area_below<false>(pool.window, o, pool.x);
    Pack<double, kWidth> sums{};
    for (std::int64_t iy = area.rows.begin; iy < area.rows.end; ++iy) {
      Pack<float, kWidth> row{};
      for (std::int64_t ix = area.columns.begin; ix < area.columns.end; ++ix) {
        const auto x = load_pack<kWidth>(pool.x.pixel(o.sample, iy, ix) + c);
        for (int k = 0; k < kWidth; ++k) row.values[k] += x.values[k];
      }
      for (int k = 0; k < kWidth; ++k) sums.values[k] += static_cast<double>(row.values[k]);
    }
    Pack<float, kWidth> y;
    for (int k = 0; k < kWidth; ++k) {
      y.values[k] = static_cast<float>(sums.values[k] * pool.share);
    }
    store_pack<kWidth>(pool.y.pixel(o.sample, o.y, o.x) + c, y);
  }
}

struct WindowRows {
  float sums[kWarps][kLanes];
};

/// The same sums in the same order; warps take rows, and the first warp adds up what they found.
__global__ void large_average_kernel(AverageForward pool) {
  WindowRows& shared = block_shared<WindowRows>();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t slabs = (pool.channels + kLanes - 1) / kLanes;
  for (std::int64_t i = blockIdx.x; i < pool.pixels * slabs; i += gridDim.x) {
    const std::int64_t index = i / slabs;
    const std::int64_t c = (i - index * slabs) * kLanes + lane;
    const std::int64_t read = c < pool.channels ? c : pool.channels - 1;
    const Pixel o = pixel_of(index, pool.y);
    const Area area = area_below<false>(pool.window, o, pool.x);
    double total = 0;
    for (std::int64_t begin = area.rows.begin; begin < area.rows.end; begin += kWarps) {
      const std::int64_t count = area.rows.end - begin < kWarps ? area.rows.end - begin : kWarps;
      float row = 0;
      if (warp < count) {
        for (std::int64_t ix = area.columns.begin; ix < area.columns.end; ++ix) {
          row += pool.x.pixel(o.sample, begin + warp, ix)[read];
        }
      }
      shared.sums[warp][lane] = row;
      __syncthreads();
      if (warp == 0) {
        for (int w = 0; w < count; ++w) total += static_cast<double>(shared.sums[w][lane]);
      }
      __syncthreads();
    }
    if (warp == 0 && c < pool.channels) {
      pool.y.pixel(o.sample, o.y, o.x)[c] = static_cast<float>(total * pool.share);
    }
  }
}

/// Product and sum are fused by hand: the CPU's compiler fuses them too.
template <int kWidth>
__global__ void average_backward_kernel(AverageBackward pool) {
  const std::int64_t packs = pool.channels / kWidth;
  for (std::int64_t i = first_item(); i < pool.pixels * packs; i += item_stride()) {
    const std::int64_t index = i / packs;
    const std::int64_t c = (i - index * packs) * kWidth;
    const Pixel in = pixel_of(index, pool.grad_x);
    const Area windows = windows_above<false>(pool.window, in, pool.grad_y);
    float* target = pool.grad_x.pixel(in.sample, in.y, in.x) + c;
    Pack<float, kWidth> sum{};
    if (pool.accumulate) sum = load_pack<kWidth>(static_cast<const float*>(target));
    for (std::int64_t oy = windows.rows.begin; oy < windows.rows.end; ++oy) {
      for (std::int64_t ox = windows.columns.begin; ox < windows.columns.end; ++ox) {
        const auto gradient = load_pack<kWidth>(pool.grad_y.pixel(in.sample, oy, ox) + c);
        for (int k = 0; k < kWidth; ++k) {
          sum.values[k] = std::fma(gradient.values[k], pool.share, sum.values[k]);
        }
      }
    }
    store_pack<kWidth>(target, sum);
  }
}

/// Starts `packed` or `single`, instances of one kernel that take kPackWidth channels or one.
template <typename Arguments>
void launch_per_pack(const Context& context, bool packs, void (*packed)(Arguments),
                     void (*single)(Arguments), const Arguments& pool) {
  const std::int64_t items = pool.pixels * pool.channels / (packs ? kPackWidth : 1);
  launch(packs ? packed : single, blocks_for_items(context, items), kPackThreads, context.stream,
         pool);
}

double share_of(const PoolGeometry& g) {
  return 1.0 / static_cast<double>(g.kernel_h * g.kernel_w);
}

}  // namespace

void max_pool_forward(const Context& context, const PoolGeometry& geometry, const Tensor& x,
                      const Tensor& y, const Tensor& winners) {
  if (x.shape.batch() == 0) return;
  check_pool(geometry, x.shape, y.shape);
  check_winners(winners, y.shape);
  LOCKSTEP_CHECK(geometry.kernel_h * geometry.kernel_w <= 255,
                 "max-pooling stores the winner's position in a byte; a window of ",
                 geometry.kernel_h, "x", geometry.kernel_w, " has too many");
  const MaxForward pool{geometry,
                        y.shape.rows(),
                        y.shape.channels(),
                        image_of<const float>(x, x.floats()),
                        image_of<float>(y, y.floats()),
                        image_of<std::uint8_t>(winners, winners.bytes())};
  const bool packs = allow_packs({&x, &y, &winners});
  if (geometry == PoolGeometry{}) {
    launch_per_pack(context, packs, max_forward_kernel<kPackWidth, true>,
                    max_forward_kernel<1, true>, pool);
  } else {
    launch_per_pack(context, packs, max_forward_kernel<kPackWidth, false>,
                    max_forward_kernel<1, false>, pool);
  }
}

void max_pool_backward(const Context& context, const PoolGeometry& geometry, const Tensor& winners,
                       const Tensor& grad_y, const Tensor& grad_x, bool accumulate) {
  if (grad_x.shape.batch() == 0) return;
  check_pool(geometry, grad_x.shape, grad_y.shape);
  check_winners(winners, grad_y.shape);
  const MaxBackward pool{geometry,
                         grad_x.shape.rows(),
                         grad_x.shape.channels(),
                         image_of<const std::uint8_t>(winners, winners.bytes()),
                         image_of<const float>(grad_y, grad_y.floats()),
                         image_of<float>(grad_x, grad_x.floats()),
                         accumulate};
  const bool packs = allow_packs({&winners, &grad_y, &grad_x});
  if (geometry == PoolGeometry{}) {
    launch_per_pack(context, packs, max_backward_kernel<kPackWidth, true>,
                    max_backward_kernel<1, true>, pool);
  } else {
    launch_per_pack(context, packs, max_backward_kernel<kPackWidth, false>,
                    max_backward_kernel<1, false>, pool);
  }
}

void avg_pool_forward(const Context& context, const PoolGeometry& geometry, const Tensor& x,
                      const Tensor& y) {
  if (x.shape.batch() == 0) return;
  check_pool(geometry, x.shape, y.shape);
  const AverageForward pool{geometry,
                            y.shape.rows(),
                            y.shape.channels(),
                            image_of<const float>(x, x.floats()),
                            image_of<float>(y, y.floats()),
                            share_of(geometry)};
  if (geometry.kernel_h * geometry.kernel_w > kLargeWindow) {
    const std::int64_t items = pool.pixels * ((pool.channels + kLanes - 1) / kLanes);
    launch(large_average_kernel, blocks_for(items, 1, std::int64_t{4} * context.multiprocessors),
           kWarps * kWarpSize, context.stream, pool);
    return;
  }
  launch_per_pack(context, allow_packs({&x, &y}), average_forward_kernel<kPackWidth>,
                  average_forward_kernel<1>, pool);
}

void avg_pool_backward(const Context& context, const PoolGeometry& geometry, const Tensor& grad_y,
                       const Tensor& grad_x, bool accumulate) {
  if (grad_x.shape.batch() == 0) return;
  check_pool(geometry, grad_x.shape, grad_y.shape);
  const AverageBackward pool{geometry,
                             grad_x.shape.rows(),
                             grad_x.shape.channels(),
                             image_of<const float>(grad_y, grad_y.floats()),
                             image_of<float>(grad_x, grad_x.floats()),
                             static_cast<float>(share_of(geometry)),
                             accumulate};
  launch_per_pack(context, allow_packs({&grad_y, &grad_x}), average_backward_kernel<kPackWidth>,
                  average_backward_kernel<1>, pool);
}

}  // namespace lockstep::gpu
