// Bilinear interpolation. One thread takes one pack of channels of one pixel that is written, the
// grid all of them in memory order. Forward computes its four weights on the way. Backward gathers:
// a first, tiny kernel writes tables of both axes to the scratch memory (what each output position
// reads, and the range of output positions that read each input position), the second one adds the
// gradients up, first along columns and then along rows. Neighbours read the same gradients, so
// these come from the caches. Products and sums are fused by hand, as the CPU's compiler fuses
// them.

#include <cmath>
#include <limits>

#include "backend/formulas.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/pooling_windows.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/index_runs.h"
#include "kernels/primitives/pack.h"
#include "kernels/primitives/views.h"

namespace lockstep::gpu {
namespace {

/// Tables of one axis, in device memory.
struct AxisTables {
  InterpolationSource* sources;  // [output]
  Range<std::int32_t>* readers;  // [input]: output positions that read it
};

struct Axes {
  InterpolationAxis vertical, horizontal;
};

template <typename T>
using Upsample = Pooling<T, Axes>;

template <typename T, int kWidth>
__global__ void upsample_forward_kernel(Upsample<T> up) {
  for_each_pack<kWidth>(up, [&](std::int32_t row, const Pixel& o, std::int32_t c) {
    const InterpolationSource v = interpolation_source(up.window.vertical, o.y);
    const InterpolationSource h = interpolation_source(up.window.horizontal, o.x);
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
  });
}

/// The first output position for which `reached` holds; it holds for all after it.
template <typename Reached>
__device__ std::int32_t first_output(const InterpolationAxis& axis, const Reached& reached) {
  std::int32_t begin = 0, end = axis.output;
  while (begin < end) {
    const std::int32_t middle = begin + (end - begin) / 2;
    if (reached(interpolation_source(axis, middle))) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

/// `i` counts the entries of both tables.
__device__ void fill_entry(const InterpolationAxis& axis, const AxisTables& tables,
                           std::int32_t i) {
  if (i < axis.output) {
    tables.sources[i] = interpolation_source(axis, i);
    return;
  }
  i -= axis.output;
  tables.readers[i] = {
      first_output(axis, [&](const InterpolationSource& source) { return source.high >= i; }),
      first_output(axis, [&](const InterpolationSource& source) { return source.low > i; })};
}

__global__ void tables_kernel(InterpolationAxis vertical, InterpolationAxis horizontal,
                              AxisTables rows, AxisTables columns) {
  const std::int32_t row_entries = vertical.output + vertical.input;
  const std::int32_t entries = row_entries + horizontal.output + horizontal.input;
  for_each_item(entries, [&](std::int32_t i) {
    if (i < row_entries) {
      fill_entry(vertical, rows, i);
    } else {
      fill_entry(horizontal, columns, i - row_entries);
    }
  });
}

template <typename T, int kWidth>
__global__ void upsample_backward_kernel(Upsample<T> up, AxisTables rows, AxisTables columns,
                                         bool accumulate) {
  for_each_pack<kWidth>(up, [&](std::int32_t row, const Pixel& in, std::int32_t c) {
    const Range<std::int32_t> above = rows.readers[in.y], beside = columns.readers[in.x];
    T* target = up.to.rows.row(row) + c;
    float total[kWidth] = {};
    if (accumulate) load_values(target, total);
    for (std::int32_t ox = beside.begin; ox < beside.end; ++ox) {
      float column[kWidth] = {};
      for (std::int32_t oy = above.begin; oy < above.end; ++oy) {
        const float weight = interpolation_weight(rows.sources[oy], in.y);
        const auto gradient = load_pack<kWidth>(up.from.at(in.sample, oy, ox) + c);
        for (int k = 0; k < kWidth; ++k) column[k] = std::fma(weight, gradient[k], column[k]);
      }
      const float weight = interpolation_weight(columns.sources[ox], in.x);
      for (int k = 0; k < kWidth; ++k) total[k] = std::fma(weight, column[k], total[k]);
    }
    store_rounded(target, total);
  });
}

/// Throws Error when the extents need more than 32 bits.
InterpolationAxis axis_of(std::int64_t input, std::int64_t output, bool align_corners) {
  LOCKSTEP_CHECK(input + output <= kMaxItems / 2, "upsampling: expected extents that add up to at ",
                 "most ", kMaxItems / 2, ", got ", input, " and ", output);
  return {input, output, align_corners};
}

/// Tables of both axes in the scratch memory.
struct Tables {
  AxisTables rows, columns;

  Tables(const Context& context, const InterpolationAxis& vertical,
         const InterpolationAxis& horizontal) {
    const std::int64_t sources = std::int64_t{vertical.output} + horizontal.output;
    const std::int64_t readers = std::int64_t{vertical.input} + horizontal.input;
    const std::size_t source_bytes =
        static_cast<std::size_t>(sources) * sizeof(InterpolationSource);
    const std::size_t reader_bytes =
        static_cast<std::size_t>(readers) * sizeof(Range<std::int32_t>);
    rows.sources = static_cast<InterpolationSource*>(context.scratch(source_bytes + reader_bytes));
    columns.sources = rows.sources + vertical.output;
    rows.readers = reinterpret_cast<Range<std::int32_t>*>(columns.sources + horizontal.output);
    columns.readers = rows.readers + vertical.input;
    launch_loop(context, sources + readers, tables_kernel, vertical, horizontal, rows, columns);
  }
};

}  // namespace

void GpuPooling::upsample_bilinear_forward(const Tensor& x, const Tensor& y, bool align_corners) {
  check_resize_forward("upsample_bilinear_forward", x, y);
  const Context& context = context_.entered();
  if (x.shape.elements() == 0) return;
  const InterpolationAxis vertical = axis_of(x.shape.height(), y.shape.height(), align_corners);
  const InterpolationAxis horizontal = axis_of(x.shape.width(), y.shape.width(), align_corners);
  with_packs({&x, &y}, [&](auto element, auto width) {
    using T = decltype(element);
    for_image_runs("upsample_bilinear_forward", width, {&x, &y},
                   [&](std::int64_t n, std::int64_t count) {
                     const Upsample<T> up({vertical, horizontal}, x.sample_range(n, count),
                                          y.sample_range(n, count), width);
                     launch_loop(context, up.items(), upsample_forward_kernel<T, width()>, up);
                   });
  });
}

void GpuPooling::upsample_bilinear_backward(const Tensor& grad_y, const Tensor& grad_x,
                                            bool align_corners, bool accumulate) {
  check_resize_backward("upsample_bilinear_backward", grad_y, grad_x);
  const Context& context = context_.entered();
  if (grad_x.shape.elements() == 0) return;
  const InterpolationAxis vertical =
      axis_of(grad_x.shape.height(), grad_y.shape.height(), align_corners);
  const InterpolationAxis horizontal =
      axis_of(grad_x.shape.width(), grad_y.shape.width(), align_corners);
  with_packs({&grad_y, &grad_x}, [&](auto element, auto width) {
    using T = decltype(element);
    const Tables tables(context, vertical, horizontal);
    for_image_runs("upsample_bilinear_backward", width, {&grad_y, &grad_x},
                   [&](std::int64_t n, std::int64_t count) {
                     const Upsample<T> up({vertical, horizontal}, grad_y.sample_range(n, count),
                                          grad_x.sample_range(n, count), width);
                     launch_loop(context, up.items(), upsample_backward_kernel<T, width()>, up,
                                 tables.rows, tables.columns, accumulate);
                   });
  });
}

}  // namespace lockstep::gpu
