// Max- and average-pooling. Every loop runs over rows of pixels in parallel and over channels in
// vectors. Backward passes gather (each input pixel asks the windows that cover it), so no two
// threads write the same value and the order of additions is fixed.

#include <algorithm>

#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/cpu/prefetch.h"
#include "backend/cpu/vec.h"
#include "backend/formulas.h"
#include "backend/operand_checks.h"
#include "backend/required_operands.h"

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
void max_of_four(const float* top, const float* bottom, std::int64_t stride, std::int64_t channels,
                 float* y, std::uint8_t* winners) {
  vec::for_each_lanes(channels, [&](std::int64_t c, std::int64_t lanes) {
    Floats best = vec::load(top + c, lanes);
    Ints winner{};
    Ints position{};
    for (const float* pixel : {top + stride, bottom, bottom + stride}) {
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
void max_of_window(const PoolGeometry& g, const Tensor& x, std::int64_t sample, std::int64_t oy,
                   std::int64_t ox, float* y, std::uint8_t* winners) {
  const std::int64_t channels = x.shape.channels();
  const IndexRange rows = covered_inputs(oy, g.kernel_h, g.stride_h, g.padding_h, x.shape.height());
  const IndexRange columns =
      covered_inputs(ox, g.kernel_w, g.stride_w, g.padding_w, x.shape.width());
  const float* image = x.floats() + sample * x.shape.height() * x.shape.width() * x.row_stride;
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
void max_pool_two_rows(const Tensor& x, const Tensor& y, const Tensor& winners, std::int64_t row) {
  const std::int64_t channels = y.shape.channels();
  const std::int64_t width = y.shape.width();
  const std::int64_t x_stride = x.row_stride;
  const std::int64_t y_stride = y.row_stride;
  const std::int64_t sample = row / y.shape.height();
  const std::int64_t iy = 2 * (row % y.shape.height());
  const float* top = x.floats() + (sample * x.shape.height() + iy) * x.shape.width() * x_stride;
  const float* bottom = top + x.shape.width() * x_stride;
  float* best = y.floats() + row * width * y_stride;
  std::uint8_t* winner = winners.bytes() + row * width * channels;
  for (std::int64_t ox = 0; ox < width; ++ox) {
    for (const float* pixel : {top, top + x_stride, bottom, bottom + x_stride}) {
      prefetch_to_read(pixel, x_stride, channels);
    }
    max_of_four(top, bottom, x_stride, channels, best, winner);
    top += 2 * x_stride;
    bottom += 2 * x_stride;
    best += y_stride;
    winner += channels;
  }
}

void max_pool_row(const PoolGeometry& g, const Tensor& x, const Tensor& y, const Tensor& winners,
                  std::int64_t row) {
  if (is_two_by_two(g)) return max_pool_two_rows(x, y, winners, row);
  const std::int64_t sample = row / y.shape.height();
  const std::int64_t oy = row % y.shape.height();
  for (std::int64_t ox = 0; ox < y.shape.width(); ++ox) {
    const std::int64_t pixel = row * y.shape.width() + ox;
    max_of_window(g, x, sample, oy, ox, y.floats() + pixel * y.row_stride,
                  winners.bytes() + pixel * y.shape.channels());
  }
}

/// target = value or target += value.
template <bool kAccumulate>
inline void put(float* target, Floats value, std::int64_t lanes) {
  if constexpr (kAccumulate) value = vec::load(target, lanes) + value;
  vec::store(target, value, lanes);
}

/// The gradient where the window's winner is at `position`.
inline Floats won(Ints winner, std::int32_t position, Floats gradient) {
  return winner == position ? gradient : Floats{};
}

/// One row of grad_x. The first window writes when not accumulating, the others add.
template <bool kAccumulate>
void max_pool_grad_row(const PoolGeometry& g, const Tensor& winners, const Tensor& grad_y,
                       const Tensor& grad_x, std::int64_t row) {
  const Shape& in = grad_x.shape;
  const Shape& out = grad_y.shape;
  const std::int64_t channels = in.channels();
  const std::int64_t sample = row / in.height();
  const std::int64_t iy = row % in.height();
  const IndexRange rows = covering_windows(iy, g.kernel_h, g.stride_h, g.padding_h, out.height());
  for (std::int64_t ix = 0; ix < in.width(); ++ix) {
    float* target = grad_x.floats() + (row * in.width() + ix) * grad_x.row_stride;
    prefetch_to_write(target, grad_x.row_stride, in.channels());
    if constexpr (!kAccumulate) std::fill_n(target, channels, 0.0F);
    const IndexRange columns =
        covering_windows(ix, g.kernel_w, g.stride_w, g.padding_w, out.width());
    for (std::int64_t oy = rows.begin; oy < rows.end; ++oy) {
      for (std::int64_t ox = columns.begin; ox < columns.end; ++ox) {
        const std::int64_t pixel = (sample * out.height() + oy) * out.width() + ox;
        const float* gradient = grad_y.floats() + pixel * grad_y.row_stride;
        const std::uint8_t* winner = winners.bytes() + pixel * channels;
        const std::int32_t position =
            static_cast<std::int32_t>((iy + g.padding_h - oy * g.stride_h) * g.kernel_w +
                                      (ix + g.padding_w - ox * g.stride_w));
        vec::for_each_lanes(channels, [&](std::int64_t c, std::int64_t lanes) {
          put<true>(
              target + c,
              won(vec::load_bytes(winner + c, lanes), position, vec::load(gradient + c, lanes)),
              lanes);
        });
      }
    }
  }
}

/// The 2x2 case: one row of windows writes two rows of grad_x.
template <bool kAccumulate>
void max_pool_grad_two_rows(const Tensor& winners, const Tensor& grad_y, const Tensor& grad_x,
                            std::int64_t row) {
  const std::int64_t channels = grad_y.shape.channels();
  const std::int64_t width = grad_y.shape.width();
  const std::int64_t stride = grad_x.row_stride;
  const std::int64_t y_stride = grad_y.row_stride;
  const std::int64_t sample = row / grad_y.shape.height();
  const std::int64_t iy = 2 * (row % grad_y.shape.height());
  const std::int64_t row_floats = grad_x.shape.width() * stride;
  float* top = grad_x.floats() + (sample * grad_x.shape.height() + iy) * row_floats;
  float* bottom = top + row_floats;
  const float* gradient = grad_y.floats() + row * width * y_stride;
  const std::uint8_t* winner = winners.bytes() + row * width * channels;
  for (std::int64_t ox = 0; ox < width; ++ox) {
    prefetch_to_read(gradient, y_stride, channels);
    for (const float* target : {top, top + stride, bottom, bottom + stride}) {
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

template <bool kAccumulate>
void max_pool_backward_rows(const PoolGeometry& g, const Tensor& winners, const Tensor& grad_y,
                            const Tensor& grad_x, int threads) {
  const Shape& in = grad_x.shape;
  const Shape& out = grad_y.shape;
  const std::int64_t row_elements = in.width() * in.channels();
  // Odd extents leave a row or column that no window covers: the general code writes its zeros.
  if (is_two_by_two(g) && in.height() % 2 == 0 && in.width() % 2 == 0) {
    parallel_for(out.batch() * out.height(), 2 * row_elements, threads,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     max_pool_grad_two_rows<kAccumulate>(winners, grad_y, grad_x, row);
                   }
                 });
    return;
  }
  parallel_for(in.batch() * in.height(), row_elements, threads,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   max_pool_grad_row<kAccumulate>(g, winners, grad_y, grad_x, row);
                 }
               });
}

/// Where a window lies in an image.
struct Area {
  IndexRange rows, columns;

  std::int64_t positions() const { return (rows.end - rows.begin) * (columns.end - columns.begin); }
};

/// One pixel of y, the sum over `area` of an image of x times `share`. Rows are summed first, then
/// the rows' sums: a long sum in one run would lose accuracy in global average pooling.
void average_of_area(const Tensor& x, std::int64_t sample, const Area& area, double share,
                     float* y) {
  const std::int64_t channels = x.shape.channels();
  constexpr std::int64_t kBlock = 32;  // channels whose sums stay in registers
  for (std::int64_t begin = 0; begin < channels; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, channels - begin);
    double sums[kBlock] = {};
    for (std::int64_t iy = area.rows.begin; iy < area.rows.end; ++iy) {
      float row_sums[kBlock] = {};
      const float* source =
          x.floats() + begin +
          ((sample * x.shape.height() + iy) * x.shape.width() + area.columns.begin) * x.row_stride;
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

/// Calls average(sample, oy, ox, pixel of y) for all pixels of y; `positions`: of a window.
template <typename Average>
void for_each_average(const Tensor& y, std::int64_t positions, int threads,
                      const Average& average) {
  const std::int64_t width = y.shape.width();
  const std::int64_t per_sample = y.shape.height() * width;
  parallel_for(y.shape.batch() * per_sample, y.shape.channels() * positions, threads,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t pixel = begin; pixel < end; ++pixel) {
                   average(pixel / per_sample, pixel % per_sample / width, pixel % width,
                           y.floats() + pixel * y.row_stride);
                 }
               });
}

/// One row of grad_x.
void avg_pool_grad_row(const PoolGeometry& g, const Tensor& grad_y, const Tensor& grad_x,
                       bool accumulate, std::int64_t row) {
  const Shape& in = grad_x.shape;
  const Shape& out = grad_y.shape;
  const auto scale = static_cast<float>(1.0 / static_cast<double>(g.kernel_h * g.kernel_w));
  const std::int64_t sample = row / in.height();
  const IndexRange rows =
      covering_windows(row % in.height(), g.kernel_h, g.stride_h, g.padding_h, out.height());
  for (std::int64_t ix = 0; ix < in.width(); ++ix) {
    float* target = grad_x.floats() + (row * in.width() + ix) * grad_x.row_stride;
    prefetch_to_write(target, grad_x.row_stride, in.channels());
    if (!accumulate) std::fill_n(target, in.channels(), 0.0F);
    const IndexRange columns =
        covering_windows(ix, g.kernel_w, g.stride_w, g.padding_w, out.width());
    for (std::int64_t oy = rows.begin; oy < rows.end; ++oy) {
      for (std::int64_t ox = columns.begin; ox < columns.end; ++ox) {
        const float* gradient =
            grad_y.floats() + ((sample * out.height() + oy) * out.width() + ox) * grad_y.row_stride;
#pragma omp simd
        for (std::int64_t c = 0; c < in.channels(); ++c) target[c] += gradient[c] * scale;
      }
    }
  }
}

IndexRange bin(std::int64_t o, std::int64_t input, std::int64_t output) {
  return adaptive_bin(o, input, output, output);
}

/// target += gradient * share, or = where nothing is `written` yet.
void add_share(const float* gradient, float share, std::int64_t channels, bool written,
               float* target) {
  const Floats shares = vec::broadcast(share);
  if (!written) {
    return vec::for_each_lanes(channels, [&](std::int64_t c, std::int64_t lanes) {
      // Plus zero, as what is fused has it on a GPU: of -0 it makes 0.
      vec::store(target + c, vec::load(gradient + c, lanes) * shares + Floats{}, lanes);
    });
  }
  vec::for_each_lanes(channels, [&](std::int64_t c, std::int64_t lanes) {
    const Floats before = vec::load(target + c, lanes);
    vec::store(target + c, vec::fma(vec::load(gradient + c, lanes), shares, before), lanes);
  });
}

/// One row of grad_x: every bin that covers a pixel gives it its gradient, divided by its extent.
void adaptive_grad_row(const Tensor& grad_y, const Tensor& grad_x, bool accumulate,
                       std::int64_t row) {
  const Shape& in = grad_x.shape;
  const Shape& out = grad_y.shape;
  const std::int64_t sample = row / in.height();
  const IndexRange rows = bin(row % in.height(), out.height(), in.height());
  for (std::int64_t ix = 0; ix < in.width(); ++ix) {
    float* target = grad_x.floats() + (row * in.width() + ix) * grad_x.row_stride;
    prefetch_to_write(target, grad_x.row_stride, in.channels());
    bool written = accumulate;
    const IndexRange columns = bin(ix, out.width(), in.width());
    for (std::int64_t oy = rows.begin; oy < rows.end; ++oy) {
      for (std::int64_t ox = columns.begin; ox < columns.end; ++ox) {
        const Area area{bin(oy, in.height(), out.height()), bin(ox, in.width(), out.width())};
        const float share = 1.0F / static_cast<float>(area.positions());
        const float* gradient =
            grad_y.floats() + ((sample * out.height() + oy) * out.width() + ox) * grad_y.row_stride;
        add_share(gradient, share, in.channels(), written, target);
        written = true;
      }
    }
  }
}

}  // namespace

void CpuPooling::max_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y,
                                  const Tensor& winners) {
  check_max_pool_forward(x, y, winners);
  if (x.shape.batch() == 0) return;
  check_pool(geometry, x.shape, y.shape);
  check_winners(winners, y.shape);
  check_fp32("max_pool_forward", {&x, &y});
  LOCKSTEP_CHECK(geometry.kernel_h * geometry.kernel_w <= 255,
                 "max-pooling stores the winner's position in a byte; a window of ",
                 geometry.kernel_h, "x", geometry.kernel_w, " has too many");
  const std::int64_t item = y.shape.width() * y.shape.channels() * geometry.kernel_h;
  parallel_for(y.shape.batch() * y.shape.height(), item, cpu_.threads(),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   max_pool_row(geometry, x, y, winners, row);
                 }
               });
}

void CpuPooling::max_pool_backward(const PoolGeometry& geometry, const Tensor& winners,
                                   const Tensor& grad_y, const Tensor& grad_x, bool accumulate) {
  check_max_pool_backward(winners, grad_y, grad_x);
  if (grad_x.shape.batch() == 0) return;
  check_pool(geometry, grad_x.shape, grad_y.shape);
  check_winners(winners, grad_y.shape);
  check_fp32("max_pool_backward", {&grad_y, &grad_x});
  if (accumulate) {
    max_pool_backward_rows<true>(geometry, winners, grad_y, grad_x, cpu_.threads());
  } else {
    max_pool_backward_rows<false>(geometry, winners, grad_y, grad_x, cpu_.threads());
  }
}

void CpuPooling::avg_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y) {
  check_images("avg_pool_forward", x, y);
  if (x.shape.batch() == 0) return;
  check_pool(geometry, x.shape, y.shape);
  check_fp32("avg_pool_forward", {&x, &y});
  const PoolGeometry& g = geometry;
  const double share = 1.0 / static_cast<double>(g.kernel_h * g.kernel_w);
  for_each_average(y, g.kernel_h * g.kernel_w, cpu_.threads(),
                   [&](std::int64_t sample, std::int64_t oy, std::int64_t ox, float* pixel) {
                     const Area area{
                         covered_inputs(oy, g.kernel_h, g.stride_h, g.padding_h, x.shape.height()),
                         covered_inputs(ox, g.kernel_w, g.stride_w, g.padding_w, x.shape.width())};
                     average_of_area(x, sample, area, share, pixel);
                   });
}

void CpuPooling::avg_pool_backward(const PoolGeometry& geometry, const Tensor& grad_y,
                                   const Tensor& grad_x, bool accumulate) {
  check_image_gradients("avg_pool_backward", grad_y, grad_x);
  if (grad_x.shape.batch() == 0) return;
  check_pool(geometry, grad_x.shape, grad_y.shape);
  check_fp32("avg_pool_backward", {&grad_y, &grad_x});
  const std::int64_t item = grad_x.shape.width() * grad_x.shape.channels();
  parallel_for(grad_x.shape.batch() * grad_x.shape.height(), item, cpu_.threads(),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   avg_pool_grad_row(geometry, grad_y, grad_x, accumulate, row);
                 }
               });
}

void CpuPooling::adaptive_avg_pool_forward(const Tensor& x, const Tensor& y) {
  check_images("adaptive_avg_pool_forward", x, y);
  if (x.shape.batch() == 0) return;
  check_adaptive_pool(x.shape, y.shape);
  check_fp32("adaptive_avg_pool_forward", {&x, &y});
  const std::int64_t positions = x.shape.rows_per_sample() / y.shape.rows_per_sample() + 1;
  for_each_average(y, positions, cpu_.threads(),
                   [&](std::int64_t sample, std::int64_t oy, std::int64_t ox, float* pixel) {
                     const Area area{bin(oy, x.shape.height(), y.shape.height()),
                                     bin(ox, x.shape.width(), y.shape.width())};
                     const double share = 1.0 / static_cast<double>(area.positions());
                     average_of_area(x, sample, area, share, pixel);
                   });
}

void CpuPooling::adaptive_avg_pool_backward(const Tensor& grad_y, const Tensor& grad_x,
                                            bool accumulate) {
  check_image_gradients("adaptive_avg_pool_backward", grad_y, grad_x);
  if (grad_x.shape.batch() == 0) return;
  check_adaptive_pool(grad_x.shape, grad_y.shape);
  check_fp32("adaptive_avg_pool_backward", {&grad_y, &grad_x});
  const std::int64_t item = grad_x.shape.width() * grad_x.shape.channels();
  parallel_for(grad_x.shape.batch() * grad_x.shape.height(), item, cpu_.threads(),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   adaptive_grad_row(grad_y, grad_x, accumulate, row);
                 }
               });
}

}  // namespace lockstep
