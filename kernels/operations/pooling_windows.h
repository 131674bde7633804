#pragma once
// What max- and average-pooling have in common: which positions a window covers, and which windows
// cover a position. One thread takes one pack of channels of one pixel that is written, the grid
// all of them in memory order. Forward reads the pixel's window; backward gathers from the windows
// that cover the pixel, in the CPU's order, so that no two threads write the same value. For .cu
// files only.

#include <cstdint>

#include "backend/formulas.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/index_runs.h"
#include "kernels/primitives/views.h"
#include "lockstep/backend/pooling.h"

namespace lockstep::gpu {

/// A PoolGeometry as kernels take it; the default is PoolGeometry's, 2x2.
struct Window {
  std::int32_t kernel_h = 2, kernel_w = 2;
  std::int32_t stride_h = 2, stride_w = 2;
  std::int32_t padding_h = 0, padding_w = 0;
  Divisor by_stride_h, by_stride_w;

  constexpr Window() = default;
  /// Over images of shape `input`. Throws Error when positions need more than 32 bits.
  Window(const PoolGeometry& g, const Shape& input)
      : kernel_h(static_cast<std::int32_t>(g.kernel_h)),
        kernel_w(static_cast<std::int32_t>(g.kernel_w)),
        stride_h(static_cast<std::int32_t>(g.stride_h)),
        stride_w(static_cast<std::int32_t>(g.stride_w)),
        padding_h(static_cast<std::int32_t>(g.padding_h)),
        padding_w(static_cast<std::int32_t>(g.padding_w)),
        by_stride_h(g.stride_h),
        by_stride_w(g.stride_w) {
    // The padding is half a kernel at most.
    LOCKSTEP_CHECK(
        input.height() + 2 * g.kernel_h <= kMaxItems && input.width() + 2 * g.kernel_w <= kMaxItems,
        "expected images and windows whose extents add up to at most ", kMaxItems, ", got ",
        to_string(input), " and ", g.kernel_h, "x", g.kernel_w);
  }
};

/// What is read and written: forward x and y, backward the gradients of y and x. `Windows`: which
/// positions belong together.
template <typename T, typename Windows = Window>
struct Pooling {
  Windows window;
  std::int32_t pixels, channels;  // of `to`
  PackRows packs;                 // of a pixel
  Images<const T> from;
  Images<T> to;

  Pooling(const Windows& extents, const Tensor& source, const Tensor& target, int width)
      : window(extents),
        pixels(static_cast<std::int32_t>(target.shape.rows())),
        channels(static_cast<std::int32_t>(target.shape.channels())),
        packs(channels / width),
        from(source),
        to(target) {}

  LOCKSTEP_HOST_DEVICE std::int32_t items() const { return pixels * packs.packs; }
};

/// The loop of every pooling kernel: calls body(row, pixel, c) for the calling thread's packs, from
/// channel c on, of the rows of `to`.
template <int kWidth, typename T, typename Windows, typename Body>
__device__ void for_each_pack(const Pooling<T, Windows>& pool, const Body& body) {
  for_each_item(pool.items(), [&](std::int32_t i) {
    const auto [row, pack] = pool.packs.place(i);
    body(row, pool.to.pixel(row), pack * kWidth);
  });
}

struct Area {
  Range<std::int32_t> rows, columns;

  LOCKSTEP_HOST_DEVICE std::int32_t positions() const {
    return (rows.end - rows.begin) * (columns.end - columns.begin);
  }
};

/// The part of the window of output pixel `o` that lies in the input. 2x2 windows always do, and
/// their extents are known to the compiler.
template <bool kTwoByTwo, typename T>
__device__ Area area_below(const Window& g, const Pixel& o, const Images<T>& in) {
  if constexpr (kTwoByTwo) return {{2 * o.y, 2 * o.y + 2}, {2 * o.x, 2 * o.x + 2}};
  return {covered_inputs(o.y, g.kernel_h, g.stride_h, g.padding_h, in.height),
          covered_inputs(o.x, g.kernel_w, g.stride_w, g.padding_w, in.width)};
}

/// The windows that cover input pixel `i`: of 2x2, one or, at the rest of an odd extent, none.
template <bool kTwoByTwo, typename T>
__device__ Area windows_above(const Window& g, const Pixel& i, const Images<T>& out) {
  if constexpr (kTwoByTwo) {
    const std::int32_t y = i.y / 2, x = i.x / 2;
    return {{y, y < out.height ? y + 1 : y}, {x, x < out.width ? x + 1 : x}};
  }
  return {covering_windows(i.y, g.kernel_h, g.by_stride_h, g.padding_h, out.height),
          covering_windows(i.x, g.kernel_w, g.by_stride_w, g.padding_w, out.width)};
}

}  // namespace lockstep::gpu
