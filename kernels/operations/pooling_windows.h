#pragma once
// What max- and average-pooling have in common: which positions a window covers, and which windows
// cover a position. One thread takes one pack of channels of one pixel that is written, the grid
// all of them in memory order. Forward reads the pixel's window; backward gathers from the windows
// that cover the pixel, in the CPU's order, so that no two threads write the same value. For .cu
// files only.

#include <cstdint>

#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/views.h"
#include "lockstep/backend/conv_geometry.h"
#include "lockstep/backend/formulas.h"

namespace lockstep::gpu {

/// What is read and written: forward x and y, backward the gradients of y and x.
template <typename T>
struct Pooling {
  PoolGeometry window;
  std::int64_t pixels, channels;  // of `to`
  Images<const T> from;
  Images<T> to;

  Pooling(const PoolGeometry& geometry, const Tensor& source, const Tensor& target)
      : window(geometry),
        pixels(target.shape.rows()),
        channels(target.shape.channels()),
        from(source),
        to(target) {}
};

/// The loop of every pooling kernel: calls body(row, pixel, c) for the calling thread's packs, from
/// channel c on, of the rows of `to`.
template <int kWidth, typename T, typename Body>
__device__ void for_each_pack(const Pooling<T>& pool, const Body& body) {
  const std::int64_t packs = pool.channels / kWidth;
  for (std::int64_t i = first_item(); i < pool.pixels * packs; i += item_stride()) {
    const std::int64_t row = i / packs;
    body(row, pool.to.pixel(row), (i - row * packs) * kWidth);
  }
}

struct Area {
  IndexRange rows, columns;
};

/// The part of the window of output pixel `o` that lies in the input. 2x2 windows always do, and
/// their extents are known to the compiler.
template <bool kTwoByTwo, typename T>
__device__ Area area_below(const PoolGeometry& g, const Pixel& o, const Images<T>& in) {
  if constexpr (kTwoByTwo) return {{2 * o.y, 2 * o.y + 2}, {2 * o.x, 2 * o.x + 2}};
  return {covered_inputs(o.y, g.kernel_h, g.stride_h, g.padding_h, in.height),
          covered_inputs(o.x, g.kernel_w, g.stride_w, g.padding_w, in.width)};
}

/// The windows that cover input pixel `i`: of 2x2, one or, at the rest of an odd extent, none.
template <bool kTwoByTwo, typename T>
__device__ Area windows_above(const PoolGeometry& g, const Pixel& i, const Images<T>& out) {
  if constexpr (kTwoByTwo) {
    const std::int64_t y = i.y / 2, x = i.x / 2;
    return {{y, y < out.height ? y + 1 : y}, {x, x < out.width ? x + 1 : x}};
  }
  return {covering_windows(i.y, g.kernel_h, g.stride_h, g.padding_h, out.height),
          covering_windows(i.x, g.kernel_w, g.stride_w, g.padding_w, out.width)};
}

}  // namespace lockstep::gpu
