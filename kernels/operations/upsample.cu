// Bilinear interpolation. One thread takes one pack of channels of one pixel that is written, the
// grid all of them in memory order. Forward computes its four weights on the way. Backward gathers:
// a first, tiny kernel writes tables of both axes to the scratch memory (what each output position
// reads, and the range of output positions that read each input position), the second one adds the
// gradients up, first along columns and then along rows. Neighbours read the same gradients, so
// these come from the caches. Products and sums are fused by hand, as the CPU's compiler fuses
// them.

#include <cmath>
#include <limits>

#include "kernels/operations/upsample.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/pack.h"
#include "kernels/primitives/views.h"
#include "lockstep/backend/formulas.h"
#include "lockstep/backend/operand_checks.h"

namespace lockstep::gpu {
namespace {

/// One axis of the interpolation.
struct Axis {
  std::int64_t input, output;
  bool align_corners;

  __device__ InterpolationSource source(std::int64_t o) const {
    return interpolation_source(o, input, output, align_corners);
  }
};

/// Tables of one axis, in device memory.
struct AxisTables {
  InterpolationSource* sources;  // [output]
  IndexRange* readers;           // [input]: output positions that read it
};

template <typename T>
struct Upsample {
  Axis vertical, horizontal;
  std::int64_t pixels, channels;  // of what is written
  Images<const T> from;
  Images<T> to;

  /// Backward, `source` has the output's shape.
  Upsample(const Tensor& source, const Tensor& target, const Shape& input, const Shape& output,
           bool align_corners)
      : vertical{input.height(), output.height(), align_corners},
        horizontal{input.width(), output.width(), align_corners},
        pixels(target.shape.rows()),
        channels(target.shape.channels()),
        from(source),
        to(target) {}
};

template <typename T, int kWidth>
__global__ void upsample_forward_kernel(Upsample<T> up) {
  const std::int64_t packs = up.channels / kWidth;
  for (std::int64_t i = first_item(); i < up.pixels * packs; i += item_stride()) {
    const std::int64_t row = i / packs;
    const std::int64_t c = (i - row * packs) * kWidth;
    const Pixel o = up.to.pixel(row);
    const InterpolationSource v = up.vertical.source(o.y), h = up.horizontal.source(o.x);
    const auto x00 = load_pack<kWidth>(up.from.at(o.sample, v.low, h.low) + c);
    const auto x01 = load_pack<kWidth>(up.from.at(o.sample, v.low, h.high) + c);
    const auto x10 = load_pack<kWidth>(up.from.at(o.sample, v.high, h.low) + c);
    const auto x11 = load_pack<kWidth>(up.from.at(o.sample, v.high, h.high) + c);
    const float w00 = v.low_weight * h.low_weight, w01 = v.low_weight * h.high_weight;
    const float w10 = v.high_weight * h.low_weight, w11 = v.high_weight * h.high_weight;
    float y[kWidth];
    for (int k = 0; k < kWidth; ++k) {
      float sum = std::fma(w00, x00[k], w01 * x01[k]);
      sum = std::fma(w10, x10[k], sum);
      y[k] = std::fma(w11, x11[k], sum);
    }
    store_rounded(up.to.rows.row(row) + c, y);
  }
}

/// The first output position for which `reached` holds; it holds for all after it.
template <typename Reached>
__device__ std::int64_t first_output(const Axis& axis, const Reached& reached) {
  std::int64_t begin = 0, end = axis.output;
  while (begin < end) {
    const std::int64_t middle = begin + (end - begin) / 2;
    if (reached(axis.source(middle))) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

/// `i` counts the entries of both tables.
__device__ void fill_entry(const Axis& axis, const AxisTables& tables, std::int64_t i) {
  if (i < axis.output) {
    tables.sources[i] = axis.source(i);
    return;
  }
  i -= axis.output;
  tables.readers[i] = {
      first_output(axis, [&](const InterpolationSource& source) { return source.high >= i; }),
      first_output(axis, [&](const InterpolationSource& source) { return source.low > i; })};
}

__global__ void tables_kernel(Axis vertical, Axis horizontal, AxisTables rows, AxisTables columns) {
  const std::int64_t row_entries = vertical.output + vertical.input;
  const std::int64_t entries = row_entries + horizontal.output + horizontal.input;
  for (std::int64_t i = first_item(); i < entries; i += item_stride()) {
    if (i < row_entries) {
      fill_entry(vertical, rows, i);
    } else {
      fill_entry(horizontal, columns, i - row_entries);
    }
  }
}

template <typename T, int kWidth>
__global__ void upsample_backward_kernel(Upsample<T> up, AxisTables rows, AxisTables columns,
                                         bool accumulate) {
  const std::int64_t packs = up.channels / kWidth;
  for (std::int64_t i = first_item(); i < up.pixels * packs; i += item_stride()) {
    const std::int64_t row = i / packs;
    const std::int64_t c = (i - row * packs) * kWidth;
    const Pixel in = up.to.pixel(row);
    const IndexRange above = rows.readers[in.y], beside = columns.readers[in.x];
    T* target = up.to.rows.row(row) + c;
    float total[kWidth] = {};
    if (accumulate) load_values(target, total);
    for (std::int64_t ox = beside.begin; ox < beside.end; ++ox) {
      float column[kWidth] = {};
      for (std::int64_t oy = above.begin; oy < above.end; ++oy) {
        const float weight = interpolation_weight(rows.sources[oy], in.y);
        const auto gradient = load_pack<kWidth>(up.from.at(in.sample, oy, ox) + c);
        for (int k = 0; k < kWidth; ++k) column[k] = std::fma(weight, gradient[k], column[k]);
      }
      const float weight = interpolation_weight(columns.sources[ox], in.x);
      for (int k = 0; k < kWidth; ++k) total[k] = std::fma(weight, column[k], total[k]);
    }
    store_rounded(target, total);
  }
}

/// Tables of both axes in the scratch memory.
struct Tables {
  AxisTables rows, columns;

  Tables(const Context& context, const Axis& vertical, const Axis& horizontal) {
    const std::int64_t sources = vertical.output + horizontal.output;
    const std::int64_t readers = vertical.input + horizontal.input;
    const std::size_t source_bytes =
        static_cast<std::size_t>(sources) * sizeof(InterpolationSource);
    const std::size_t reader_bytes = static_cast<std::size_t>(readers) * sizeof(IndexRange);
    rows.sources = static_cast<InterpolationSource*>(context.scratch(source_bytes + reader_bytes));
    columns.sources = rows.sources + vertical.output;
    rows.readers = reinterpret_cast<IndexRange*>(columns.sources + horizontal.output);
    columns.readers = rows.readers + vertical.input;
    launch_loop(context, sources + readers, tables_kernel, vertical, horizontal, rows, columns);
  }
};

}  // namespace

void upsample_bilinear_forward(const Context& context, const Tensor& x, const Tensor& y,
                               bool align_corners) {
  if (x.shape.elements() == 0 || y.shape.elements() == 0) return;
  check_upsample(x.shape, y.shape);
  check_same_type("upsample_bilinear_forward", {&x, &y});
  with_packs({&x, &y}, [&](auto element, auto width) {
    using T = decltype(element);
    launch_loop(context, y.shape.elements() / width, upsample_forward_kernel<T, width()>,
                Upsample<T>(x, y, x.shape, y.shape, align_corners));
  });
}

void upsample_bilinear_backward(const Context& context, const Tensor& grad_y, const Tensor& grad_x,
                                bool align_corners, bool accumulate) {
  if (grad_x.shape.elements() == 0 || grad_y.shape.elements() == 0) return;
  check_upsample(grad_x.shape, grad_y.shape);
  check_same_type("upsample_bilinear_backward", {&grad_y, &grad_x});
  with_packs({&grad_y, &grad_x}, [&](auto element, auto width) {
    using T = decltype(element);
    const Upsample<T> up(grad_y, grad_x, grad_x.shape, grad_y.shape, align_corners);
    const Tables tables(context, up.vertical, up.horizontal);
    launch_loop(context, grad_x.shape.elements() / width, upsample_backward_kernel<T, width()>, up,
                tables.rows, tables.columns, accumulate);
  });
}

}  // namespace lockstep::gpu
