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
#include "kernels/primitives/pack.h"
#include "lockstep/backend/formulas.h"

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

struct Upsample {
  Axis vertical, horizontal;
  std::int64_t pixels, channels;  // of what is written
  const float* from;
  float* to;
  std::int64_t from_stride, to_stride;
};

struct Pixel {
  std::int64_t sample, y, x;
};
__device__ Pixel pixel_of(std::int64_t index, std::int64_t height, std::int64_t width) {
  const std::int64_t row = index / width;
  const std::int64_t sample = row / height;
  return {sample, row - sample * height, index - row * width};
}

template <int kWidth>
__global__ void upsample_forward_kernel(Upsample up) {
  const std::int64_t packs = up.channels / kWidth;
  for (std::int64_t i = first_item(); i < up.pixels * packs; i += item_stride()) {
    const std::int64_t index = i / packs;
    const std::int64_t c = (i - index * packs) * kWidth;
    const Pixel o = pixel_of(index, up.vertical.output, up.horizontal.output);
    const InterpolationSource v = up.vertical.source(o.y), h = up.horizontal.source(o.x);
    const std::int64_t top = (o.sample * up.vertical.input + v.low) * up.horizontal.input;
    const std::int64_t bottom = (o.sample * up.vertical.input + v.high) * up.horizontal.input;
    const float* from = up.from + c;
    const auto x00 = load_pack<kWidth>(from + (top + h.low) * up.from_stride);
    const auto x01 = load_pack<kWidth>(from + (top + h.high) * up.from_stride);
    const auto x10 = load_pack<kWidth>(from + (bottom + h.low) * up.from_stride);
    const auto x11 = load_pack<kWidth>(from + (bottom + h.high) * up.from_stride);
    const float w00 = v.low_weight * h.low_weight, w01 = v.low_weight * h.high_weight;
    const float w10 = v.high_weight * h.low_weight, w11 = v.high_weight * h.high_weight;
    Pack<float, kWidth> y;
    for (int k = 0; k < kWidth; ++k) {
      float sum = std::fma(w00, x00.values[k], w01 * x01.values[k]);
      sum = std::fma(w10, x10.values[k], sum);
      y.values[k] = std::fma(w11, x11.values[k], sum);
    }
    store_pack<kWidth>(up.to + index * up.to_stride + c, y);
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

template <int kWidth>
__global__ void upsample_backward_kernel(Upsample up, AxisTables rows, AxisTables columns,
                                         bool accumulate) {
  const std::int64_t packs = up.channels / kWidth;
  for (std::int64_t i = first_item(); i < up.pixels * packs; i += item_stride()) {
    const std::int64_t index = i / packs;
    const std::int64_t c = (i - index * packs) * kWidth;
    const Pixel in = pixel_of(index, up.vertical.input, up.horizontal.input);
    const IndexRange above = rows.readers[in.y], beside = columns.readers[in.x];
    const float* image =
        up.from + in.sample * up.vertical.output * up.horizontal.output * up.from_stride + c;
    float* target = up.to + index * up.to_stride + c;
    Pack<float, kWidth> total{};
    if (accumulate) total = load_pack<kWidth>(static_cast<const float*>(target));
    for (std::int64_t ox = beside.begin; ox < beside.end; ++ox) {
      Pack<float, kWidth> column{};
      for (std::int64_t oy = above.begin; oy < above.end; ++oy) {
        const float weight = interpolation_weight(rows.sources[oy], in.y);
        const auto gradient =
            load_pack<kWidth>(image + (oy * up.horizontal.output + ox) * up.from_stride);
        for (int k = 0; k < kWidth; ++k) {
          column.values[k] = std::fma(weight, gradient.values[k], column.values[k]);
        }
      }
      const float weight = interpolation_weight(columns.sources[ox], in.x);
      for (int k = 0; k < kWidth; ++k) {
        total.values[k] = std::fma(weight, column.values[k], total.values[k]);
      }
    }
    store_pack<kWidth>(target, total);
  }
}

void check_upsample(const Shape& x, const Shape& y) {
  LOCKSTEP_CHECK(
      x.rank() == 4 && y.rank() == 4 && x.batch() == y.batch() && x.channels() == y.channels(),
      "upsampling keeps batch and channels, got ", to_string(x), " and ", to_string(y));
  constexpr std::int64_t kLongest = std::numeric_limits<std::int32_t>::max();
  LOCKSTEP_CHECK(x.height() <= kLongest && x.width() <= kLongest,
                 "upsampling takes images of up to 2^31 - 1 pixels a side, got ", to_string(x));
}

Upsample upsample_of(const Shape& small, const Shape& large, const Tensor& from, const Tensor& to,
                     bool align_corners) {
  return {{small.height(), large.height(), align_corners},
          {small.width(), large.width(), align_corners},
          to.shape.rows(),
          to.shape.channels(),
          from.floats(),
          to.floats(),
          from.row_stride,
          to.row_stride};
}

}  // namespace

void upsample_bilinear_forward(const Context& context, const Tensor& x, const Tensor& y,
                               bool align_corners) {
  if (x.shape.elements() == 0 || y.shape.elements() == 0) return;
  check_upsample(x.shape, y.shape);
  const Upsample up = upsample_of(x.shape, y.shape, x, y, align_corners);
  const bool packs = allow_packs({&x, &y});
  const std::int64_t items = y.shape.elements() / (packs ? kPackWidth : 1);
  launch(packs ? upsample_forward_kernel<kPackWidth> : upsample_forward_kernel<1>,
         blocks_for_items(context, items), kPackThreads, context.stream, up);
}

void upsample_bilinear_backward(const Context& context, const Tensor& grad_y, const Tensor& grad_x,
                                bool align_corners, bool accumulate) {
  const Shape& in = grad_x.shape;
  const Shape& out = grad_y.shape;
  if (in.elements() == 0 || out.elements() == 0) return;
  check_upsample(in, out);
  const Upsample up = upsample_of(in, out, grad_y, grad_x, align_corners);
  const auto sources = static_cast<std::size_t>(out.height() + out.width());
  const auto readers = static_cast<std::size_t>(in.height() + in.width());
  AxisTables rows{}, columns{};
  rows.sources = static_cast<InterpolationSource*>(
      context.scratch(sources * sizeof(InterpolationSource) + readers * sizeof(IndexRange)));
  columns.sources = rows.sources + out.height();
  rows.readers = reinterpret_cast<IndexRange*>(columns.sources + out.width());
  columns.readers = rows.readers + in.height();
  launch(tables_kernel, blocks_for_items(context, static_cast<std::int64_t>(sources + readers)),
         kPackThreads, context.stream, up.vertical, up.horizontal, rows, columns);
  const bool packs = allow_packs({&grad_y, &grad_x});
  const std::int64_t items = in.elements() / (packs ? kPackWidth : 1);
  launch(packs ? upsample_backward_kernel<kPackWidth> : upsample_backward_kernel<1>,
         blocks_for_items(context, items), kPackThreads, context.stream, up, rows, columns,
         accumulate);
}

}  // namespace lockstep::gpu
