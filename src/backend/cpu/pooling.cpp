// Max- and average-pooling. Every loop runs over rows of pixels in parallel and over channels in
// vectors. Backward passes gather (each input pixel asks the windows that cover it), so no two
// threads write the same value and the order of additions is fixed.

#include <algorithm>
#include <cmath>

#include "backend/cpu/element.h"
#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/cpu/prefetch.h"
#include "backend/cpu/vec.h"
#include "backend/formulas.h"

namespace lockstep {
namespace {

using vec::Floats;
using vec::Ints;

bool is_two_by_two(const PoolGeometry& g) { return g == PoolGeometry{}; }

/// Lane by lane what wins() of formulas.h says: -1 where the candidate does.
inline Ints wins_by_lane(Floats candidate, Floats best) {
  return (candidate > best) | (candidate != candidate);
}

/// One pixel of y from the four pixels below it.
template <typename T>
void max_of_four(const T* top, const T* bottom, std::int64_t stride, std::int64_t channels, T* y,
                 std::uint8_t* winners) {
  vec::for_each_lanes(channels, [&](std::int64_t c, std::int64_t lanes) {
    Floats best = vec::load(top + c, lanes);
    Ints winner{};
    Ints position{};
    for (const T* pixel : {top + stride, bottom, bottom + stride}) {
      const Floats candidate = vec::load(pixel + c, lanes);
      const Ints better = wins_by_lane(candidate, best);
      position += 1;
      best = better ? candidate : best;
      winner = better ? position : winner;
    }
    vec::store(y + c, best, lanes);
    vec::store_bytes(winners + c, winner, lanes);
  });
}

/// One pixel of y from any window.
template <typename T>
void max_of_window(const PoolGeometry& g, const Tensor& x, std::int64_t sample, std::int64_t oy,
                   std::int64_t ox, T* y, std::uint8_t* winners) {
  const std::int64_t channels = x.shape.channels();
  const IndexRange rows = covered_inputs(oy, g.kernel_h, g.stride_h, g.padding_h, x.shape.height());
  const IndexRange columns =
      covered_inputs(ox, g.kernel_w, g.stride_w, g.padding_w, x.shape.width());
  const T* image = row_of<const T>(x, sample * x.shape.height() * x.shape.width());
  vec::for_each_lanes(channels, [&](std::int64_t c, std::int64_t lanes) {
    Floats best{};
    Ints winner{};
    Ints first = ~Ints{};  // in every lane until there is something to compare with
    for (std::int64_t iy = rows.begin; iy < rows.end; ++iy) {
      for (std::int64_t ix = columns.begin; ix < columns.end; ++ix) {
        const Floats candidate =
            vec::load(image + (iy * x.shape.width() + ix) * x.row_stride + c, lanes);
        const Ints better = first | wins_by_lane(candidate, best);
        const auto position =
            static_cast<std::int32_t>((iy + g.padding_h - oy * g.stride_h) * g.kernel_w +
                                      (ix + g.padding_w - ox * g.stride_w));
        best = better ? candidate : best;
        winner = better ? position - Ints{} : winner;
        first = Ints{};
      }
    }
    vec::store(y + c, best, lanes);
    vec::store_bytes(winners + c, winner, lanes);
  });
}

/// One row of y, 2x2 windows.
template <typename T>
void max_pool_two_rows(const Tensor& x, const Tensor& y, const Tensor& winners, std::int64_t row) {
  const std::int64_t channels = y.shape.channels();
  const std::int64_t width = y.shape.width();
  const std::int64_t x_stride = x.row_stride;
  const std::int64_t y_stride = y.row_stride;
  const std::int64_t sample = row / y.shape.height();
  const std::int64_t iy = 2 * (row % y.shape.height());
  const T* top = row_of<const T>(x, (sample * x.shape.height() + iy) * x.shape.width());
  const T* bottom = top + x.shape.width() * x_stride;
  T* best = row_of<T>(y, row * width);
  std::uint8_t* winner = winners.bytes() + row * width * channels;
  for (std::int64_t ox = 0; ox < width; ++ox) {
    for (const T* pixel : {top, top + x_stride, bottom, bottom + x_stride}) {
      prefetch_to_read(pixel, x_stride, channels);
    }
    max_of_four(top, bottom, x_stride, channels, best, winner);
    top += 2 * x_stride;
    bottom += 2 * x_stride;
    best += y_stride;
    winner += channels;
  }
}

template <typename T>
void max_pool_row(const PoolGeometry& g, const Tensor& x, const Tensor& y, const Tensor& winners,
                  std::int64_t row) {
  if (is_two_by_two(g)) return max_pool_two_rows<T>(x, y, winners, row);
  const std::int64_t sample = row / y.shape.height();
  const std::int64_t oy = row % y.shape.height();
  for (std::int64_t ox = 0; ox < y.shape.width(); ++ox) {
    const std::int64_t pixel = row * y.shape.width() + ox;
    max_of_window(g, x, sample, oy, ox, row_of<T>(y, pixel),
                  winners.bytes() + pixel * y.shape.channels());
  }
}

/// target = value or target += value.
template <bool kAccumulate, typename T>
inline void put(T* target, Floats value, std::int64_t lanes) {
  if constexpr (kAccumulate) value = vec::load(target, lanes) + value;
  vec::store(target, value, lanes);
}

/// The gradient where the window's winner is at `position`.
inline Floats won(Ints winner, std::int32_t position, Floats gradient) {
  return winner == position ? gradient : Floats{};
}

/// Where a window lies in an image, or the windows that cover a pixel.
struct Area {
  IndexRange rows, columns;

  std::int64_t positions() const { return (rows.end - rows.begin) * (columns.end - columns.begin); }
};

/// One pixel of grad_x from the windows that cover it: add(oy, ox, first, count, sums) adds what
/// one gives channels [first, first + count).
template <typename Add>
void gather(const Area& windows, std::int64_t channels, bool accumulate, float* target,
            const Add& add) {
  if (!accumulate) std::fill_n(target, channels, 0.0F);
  for (std::int64_t oy = windows.rows.begin; oy < windows.rows.end; ++oy) {
    for (std::int64_t ox = windows.columns.begin; ox < windows.columns.end; ++ox) {
      add(oy, ox, std::int64_t{0}, channels, target);
    }
  }
}

/// The same, rounded once.
template <typename Add>
void gather(const Area& windows, std::int64_t channels, bool accumulate, BFloat16* target,
            const Add& add) {
  constexpr std::int64_t kBlock = 512;  // channels whose sums stay in a first-level cache
  float sums[kBlock];
  for (std::int64_t first = 0; first < channels; first += kBlock) {
    const std::int64_t count = std::min(kBlock, channels - first);
    if (accumulate) std::copy_n(target + first, count, sums);
    gather(windows, count, accumulate, sums,
           [&](std::int64_t oy, std::int64_t ox, std::int64_t, std::int64_t, float* to) {
             add(oy, ox, first, count, to);
           });
#pragma omp simd
    for (std::int64_t c = 0; c < count; ++c) target[first + c] = sums[c];
  }
}

/// One row of grad_x.
template <typename T>
void max_pool_grad_row(const PoolGeometry& g, const Tensor& winners, const Tensor& grad_y,
                       const Tensor& grad_x, bool accumulate, std::int64_t row) {
  const Shape& in = grad_x.shape;
  const Shape& out = grad_y.shape;
  const std::int64_t channels = in.channels();
  const std::int64_t sample = row / in.height();
  const std::int64_t iy = row % in.height();
  const IndexRange rows = covering_windows(iy, g.kernel_h, g.stride_h, g.padding_h, out.height());
  for (std::int64_t ix = 0; ix < in.width(); ++ix) {
    T* target = row_of<T>(grad_x, row * in.width() + ix);
    prefetch_to_write(target, grad_x.row_stride, channels);
    const Area windows{rows,
                       covering_windows(ix, g.kernel_w, g.stride_w, g.padding_w, out.width())};
    gather(
        windows, channels, accumulate, target,
        [&](std::int64_t oy, std::int64_t ox, std::int64_t first, std::int64_t count, float* sums) {
          const std::int64_t pixel = (sample * out.height() + oy) * out.width() + ox;
          const T* gradient = row_of<const T>(grad_y, pixel) + first;
          const std::uint8_t* winner = winners.bytes() + pixel * channels + first;
          const auto position =
              static_cast<std::int32_t>((iy + g.padding_h - oy * g.stride_h) * g.kernel_w +
                                        (ix + g.padding_w - ox * g.stride_w));
          vec::for_each_lanes(count, [&](std::int64_t c, std::int64_t lanes) {
            put<true>(
                sums + c,
                won(vec::load_bytes(winner + c, lanes), position, vec::load(gradient + c, lanes)),
                lanes);
          });
        });
  }
}

/// The 2x2 case: one row of windows writes two rows of grad_x.
template <typename T, bool kAccumulate>
void max_pool_grad_two_rows(const Tensor& winners, const Tensor& grad_y, const Tensor& grad_x,
                            std::int64_t row) {
  const std::int64_t channels = grad_y.shape.channels();
  const std::int64_t width = grad_y.shape.width();
  const std::int64_t stride = grad_x.row_stride;
  const std::int64_t y_stride = grad_y.row_stride;
  const std::int64_t sample = row / grad_y.shape.height();
  const std::int64_t iy = 2 * (row % grad_y.shape.height());
  const std::int64_t in_width = grad_x.shape.width();
  T* top = row_of<T>(grad_x, (sample * grad_x.shape.height() + iy) * in_width);
  T* bottom = top + in_width * stride;
  const T* gradient = row_of<const T>(grad_y, row * width);
  const std::uint8_t* winner = winners.bytes() + row * width * channels;
  for (std::int64_t ox = 0; ox < width; ++ox) {
    prefetch_to_read(gradient, y_stride, channels);
    for (const T* target : {top, top + stride, bottom, bottom + stride}) {
      prefetch_to_write(target, stride, channels);
    }
    vec::for_each_lanes(channels, [&](std::int64_t c, std::int64_t lanes) {
      const Ints position = vec::load_bytes(winner + c, lanes);
      const Floats grad = vec::load(gradient + c, lanes);
      put<kAccumulate>(top + c, won(position, 0, grad), lanes);
      put<kAccumulate>(top + stride + c, won(position, 1, grad), lanes);
      put<kAccumulate>(bottom + c, won(position, 2, grad), lanes);
      put<kAccumulate>(bottom + stride + c, won(position, 3, grad), lanes);
    });
    top += 2 * stride;
    bottom += 2 * stride;
    gradient += y_stride;
    winner += channels;
  }
}

template <typename T>
void max_pool_backward_rows(const PoolGeometry& g, const Tensor& winners, const Tensor& grad_y,
                            const Tensor& grad_x, bool accumulate, int threads) {
  const Shape& in = grad_x.shape;
  const Shape& out = grad_y.shape;
  const std::int64_t row_elements = in.width() * in.channels();
  // Odd extents leave a row or column that no window covers: the general code writes its zeros.
  if (is_two_by_two(g) && in.height() % 2 == 0 && in.width() % 2 == 0) {
    const auto grad_rows =
        accumulate ? max_pool_grad_two_rows<T, true> : max_pool_grad_two_rows<T, false>;
    parallel_for(out.batch() * out.height(), 2 * row_elements, threads,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     grad_rows(winners, grad_y, grad_x, row);
                   }
                 });
    return;
  }
  parallel_for(in.batch() * in.height(), row_elements, threads,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   max_pool_grad_row<T>(g, winners, grad_y, grad_x, accumulate, row);
                 }
               });
}

/// One pixel of y, the sum over `area` of an image of x times `share`. Rows are summed first, then
/// the rows' sums: a long sum in one run would lose accuracy in global average pooling.
template <typename T>
void average_of_area(const Tensor& x, std::int64_t sample, const Area& area, double share, T* y) {
  const std::int64_t channels = x.shape.channels();
  constexpr std::int64_t kBlock = 32;  // channels whose sums stay in registers
  for (std::int64_t begin = 0; begin < channels; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, channels - begin);
    double sums[kBlock] = {};
    for (std::int64_t iy = area.rows.begin; iy < area.rows.end; ++iy) {
      float row_sums[kBlock] = {};
      const T* source = row_of<const T>(x, (sample * x.shape.height() + iy) * x.shape.width() +
                                               area.columns.begin) +
                        begin;
      for (std::int64_t ix = area.columns.begin; ix < area.columns.end;
           ++ix, source += x.row_stride) {
#pragma omp simd
        for (std::int64_t c = 0; c < count; ++c) row_sums[c] += source[c];
      }
      for (std::int64_t c = 0; c < count; ++c) sums[c] += static_cast<double>(row_sums[c]);
    }
    for (std::int64_t c = 0; c < count; ++c) y[begin + c] = static_cast<float>(sums[c] * share);
  }
}

/// y = the averages of the areas that area_of(oy, ox) names, of about `positions` each;
/// share_of(area) is that of a position.
template <typename AreaOf, typename ShareOf>
void average_forward(const Tensor& x, const Tensor& y, std::int64_t positions, int threads,
                     const AreaOf& area_of, const ShareOf& share_of) {
  const std::int64_t width = y.shape.width();
  const std::int64_t per_sample = y.shape.height() * width;
  with_element_type(y.dtype, [&]<typename T>(T) {
    parallel_for(y.shape.batch() * per_sample, y.shape.channels() * positions, threads,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t pixel = begin; pixel < end; ++pixel) {
                     const Area area = area_of(pixel % per_sample / width, pixel % width);
                     average_of_area(x, pixel / per_sample, area, share_of(area),
                                     row_of<T>(y, pixel));
                   }
                 });
  });
}

/// grad_x = the sum of grad_y's pixels in area_of(iy, ix), each times share_of(oy, ox), or +=.
template <typename AreaOf, typename ShareOf>
void average_backward(const Tensor& grad_y, const Tensor& grad_x, bool accumulate, int threads,
                      const AreaOf& area_of, const ShareOf& share_of) {
  const Shape& in = grad_x.shape;
  const Shape& out = grad_y.shape;
  const auto grad_row = [&]<typename T>(T, std::int64_t row) {
    for (std::int64_t ix = 0; ix < in.width(); ++ix) {
      T* target = row_of<T>(grad_x, row * in.width() + ix);
      prefetch_to_write(target, grad_x.row_stride, in.channels());
      gather(area_of(row % in.height(), ix), in.channels(), accumulate, target,
             [&](std::int64_t oy, std::int64_t ox, std::int64_t first, std::int64_t count,
                 float* sums) {
               const std::int64_t image = row / in.height() * out.height();
               const T* gradient = row_of<const T>(grad_y, (image + oy) * out.width() + ox) + first;
               const float share = share_of(oy, ox);
#pragma omp simd
               for (std::int64_t c = 0; c < count; ++c) {
                 sums[c] = std::fma(gradient[c], share, sums[c]);
               }
             });
    }
  };
  with_element_type(grad_x.dtype, [&](auto element) {
    parallel_for(in.batch() * in.height(), in.width() * in.channels(), threads,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) grad_row(element, row);
                 });
  });
}

IndexRange bin(std::int64_t o, std::int64_t input, std::int64_t output) {
  return adaptive_bin(o, input, output, output);
}

/// What adaptive pooling to `output` reads of `input` for one of its pixels; with the two
/// exchanged, the bins that a pixel is in.
Area bins(const Shape& input, const Shape& output, std::int64_t oy, std::int64_t ox) {
  return {bin(oy, input.height(), output.height()), bin(ox, input.width(), output.width())};
}

}  // namespace

void CpuPooling::max_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y,
                                  const Tensor& winners) {
  check_max_pool_forward(geometry, x, y, winners);
  const std::int64_t item = y.shape.width() * y.shape.channels() * geometry.kernel_h;
  const auto pool_row = with_element_type(x.dtype, []<typename T>(T) { return max_pool_row<T>; });
  parallel_for(y.shape.batch() * y.shape.height(), item, cpu_.threads(),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   pool_row(geometry, x, y, winners, row);
                 }
               });
}

void CpuPooling::max_pool_backward(const PoolGeometry& geometry, const Tensor& winners,
                                   const Tensor& grad_y, const Tensor& grad_x, bool accumulate) {
  check_max_pool_backward(geometry, winners, grad_y, grad_x);
  with_element_type(grad_x.dtype, [&]<typename T>(T) {
    max_pool_backward_rows<T>(geometry, winners, grad_y, grad_x, accumulate, cpu_.threads());
  });
}

void CpuPooling::avg_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y) {
  check_avg_pool_forward(geometry, x, y);
  const PoolGeometry& g = geometry;
  const std::int64_t positions = g.kernel_h * g.kernel_w;  // also those in the padding
  average_forward(
      x, y, positions, cpu_.threads(),
      [&](std::int64_t oy, std::int64_t ox) {
        return Area{covered_inputs(oy, g.kernel_h, g.stride_h, g.padding_h, x.shape.height()),
                    covered_inputs(ox, g.kernel_w, g.stride_w, g.padding_w, x.shape.width())};
      },
      [&](const Area&) { return 1.0 / static_cast<double>(positions); });
}

void CpuPooling::avg_pool_backward(const PoolGeometry& geometry, const Tensor& grad_y,
                                   const Tensor& grad_x, bool accumulate) {
  check_avg_pool_backward(geometry, grad_y, grad_x);
  const PoolGeometry& g = geometry;
  const Shape& out = grad_y.shape;
  const auto share = static_cast<float>(1.0 / static_cast<double>(g.kernel_h * g.kernel_w));
  average_backward(
      grad_y, grad_x, accumulate, cpu_.threads(),
      [&](std::int64_t iy, std::int64_t ix) {
        return Area{covering_windows(iy, g.kernel_h, g.stride_h, g.padding_h, out.height()),
                    covering_windows(ix, g.kernel_w, g.stride_w, g.padding_w, out.width())};
      },
      [&](std::int64_t, std::int64_t) { return share; });
}

void CpuPooling::adaptive_avg_pool_forward(const Tensor& x, const Tensor& y) {
  check_resize_forward("adaptive_avg_pool_forward", x, y);
  if (x.shape.elements() == 0) return;
  average_forward(
      x, y, x.shape.rows_per_sample() / y.shape.rows_per_sample() + 1, cpu_.threads(),
      [&](std::int64_t oy, std::int64_t ox) { return bins(x.shape, y.shape, oy, ox); },
      [](const Area& area) { return 1.0 / static_cast<double>(area.positions()); });
}

void CpuPooling::adaptive_avg_pool_backward(const Tensor& grad_y, const Tensor& grad_x,
                                            bool accumulate) {
  check_resize_backward("adaptive_avg_pool_backward", grad_y, grad_x);
  const Shape& in = grad_x.shape;
  const Shape& out = grad_y.shape;
  average_backward(
      grad_y, grad_x, accumulate, cpu_.threads(),
      [&](std::int64_t iy, std::int64_t ix) { return bins(out, in, iy, ix); },
      [&](std::int64_t oy, std::int64_t ox) {
        return 1.0F / static_cast<float>(bins(in, out, oy, ox).positions());
      });
}

}  // namespace lockstep
