// Bilinear interpolation with PyTorch's index arithmetic. Backward gathers: each input pixel asks
// the output pixels that read it, first along columns and then along rows, so the order of
// additions is fixed.

#include <omp.h>

#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/parallel_for.h"
#include "lockstep/backend/formulas.h"
#include "lockstep/backend/operand_checks.h"

namespace lockstep {
namespace {

void fill_sources(InterpolationSource* sources, std::int64_t input, std::int64_t output,
                  bool align_corners) {
  const InterpolationAxis axis(input, output, align_corners);
  for (std::int32_t o = 0; o < axis.output; ++o) sources[o] = interpolation_source(axis, o);
}

/// Both ends of a source grow with the output position, so the readers of an input are one range.
void fill_readers(IndexRange* readers, const InterpolationSource* sources, std::int64_t input,
                  std::int64_t output) {
  std::fill_n(readers, input, IndexRange{output, 0});
  for (std::int64_t o = 0; o < output; ++o) {
    for (const std::int64_t i : {sources[o].low, sources[o].high}) {
      readers[i] = {std::min(readers[i].begin, o), std::max(readers[i].end, o + 1)};
    }
  }
}

/// Tables of one call, and one row of sums per thread, in the backend's scratch memory.
struct Plan {
  InterpolationSource *rows, *columns;
  IndexRange *row_readers, *column_readers;
  float* row_sums;  // [threads, output width * channels]

  static std::size_t bytes(const Shape& in, const Shape& out, int threads) {
    const auto sources = static_cast<std::size_t>(out.height() + out.width());
    const auto readers = static_cast<std::size_t>(in.height() + in.width());
    const auto sums = static_cast<std::size_t>(threads * out.width() * out.channels());
    return sources * sizeof(InterpolationSource) + readers * sizeof(IndexRange) +
           sums * sizeof(float);
  }

  Plan(void* scratch, const Shape& in, const Shape& out, bool align_corners)
      : rows(static_cast<InterpolationSource*>(scratch)),
        columns(rows + out.height()),
        row_readers(reinterpret_cast<IndexRange*>(columns + out.width())),
        column_readers(row_readers + in.height()),
        row_sums(reinterpret_cast<float*>(column_readers + in.width())) {
    fill_sources(rows, in.height(), out.height(), align_corners);
    fill_sources(columns, in.width(), out.width(), align_corners);
    fill_readers(row_readers, rows, in.height(), out.height());
    fill_readers(column_readers, columns, in.width(), out.width());
  }
};

void upsample_row(const Plan& plan, const Tensor& x, const Tensor& y, std::int64_t row) {
  const std::int64_t channels = x.shape.channels();
  const std::int64_t sample = row / y.shape.height();
  const InterpolationSource& vertical = plan.rows[row % y.shape.height()];
  const float* image = x.floats() + sample * x.shape.height() * x.shape.width() * x.row_stride;
  const float* top = image + vertical.low * x.shape.width() * x.row_stride;
  const float* bottom = image + vertical.high * x.shape.width() * x.row_stride;
  float* target = y.floats() + row * y.shape.width() * y.row_stride;
  for (std::int64_t ox = 0; ox < y.shape.width(); ++ox, target += y.row_stride) {
    const InterpolationSource& horizontal = plan.columns[ox];
    const std::int64_t left = horizontal.low * x.row_stride;
    const std::int64_t right = horizontal.high * x.row_stride;
    const float w00 = vertical.low_weight * horizontal.low_weight;
    const float w01 = vertical.low_weight * horizontal.high_weight;
    const float w10 = vertical.high_weight * horizontal.low_weight;
    const float w11 = vertical.high_weight * horizontal.high_weight;
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) {
      target[c] = w00 * top[left + c] + w01 * top[right + c] + w10 * bottom[left + c] +
                  w11 * bottom[right + c];
    }
  }
}

/// sums [output width, C] = the output rows that read input row iy, weighted.
void sum_output_rows(const Plan& plan, const Tensor& grad_y, std::int64_t sample, std::int64_t iy,
                     float* sums) {
  const Shape& out = grad_y.shape;
  const std::int64_t channels = out.channels();
  const IndexRange readers = plan.row_readers[iy];
  std::fill_n(sums, out.width() * channels, 0.0F);
  for (std::int64_t oy = readers.begin; oy < readers.end; ++oy) {
    const float weight = interpolation_weight(plan.rows[oy], iy);
    const float* source =
        grad_y.floats() + (sample * out.height() + oy) * out.width() * grad_y.row_stride;
    for (std::int64_t ox = 0; ox < out.width(); ++ox, source += grad_y.row_stride) {
      float* target = sums + ox * channels;
#pragma omp simd
      for (std::int64_t c = 0; c < channels; ++c) target[c] += weight * source[c];
    }
  }
}

void upsample_grad_row(const Plan& plan, const Tensor& grad_y, const Tensor& grad_x,
                       bool accumulate, std::int64_t row, float* sums) {
  const std::int64_t channels = grad_x.shape.channels();
  const std::int64_t width = grad_x.shape.width();
  const std::int64_t height = grad_x.shape.height();
  sum_output_rows(plan, grad_y, row / height, row % height, sums);
  for (std::int64_t ix = 0; ix < width; ++ix) {
    float* target = grad_x.floats() + (row * width + ix) * grad_x.row_stride;
    if (!accumulate) std::fill_n(target, channels, 0.0F);
    const IndexRange readers = plan.column_readers[ix];
    for (std::int64_t ox = readers.begin; ox < readers.end; ++ox) {
      const float weight = interpolation_weight(plan.columns[ox], ix);
      const float* source = sums + ox * channels;
#pragma omp simd
      for (std::int64_t c = 0; c < channels; ++c) target[c] += weight * source[c];
    }
  }
}

}  // namespace

void CpuBackend::upsample_bilinear_forward(const Tensor& x, const Tensor& y, bool align_corners) {
  if (x.shape.elements() == 0 || y.shape.elements() == 0) return;
  check_upsample(x.shape, y.shape);
  check_fp32("upsample_bilinear_forward", {&x, &y});
  const Plan plan(scratch(Plan::bytes(x.shape, y.shape, threads_)), x.shape, y.shape,
                  align_corners);
  parallel_for(y.shape.batch() * y.shape.height(), y.shape.width() * y.shape.channels(), threads_,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) upsample_row(plan, x, y, row);
               });
}

void CpuBackend::upsample_bilinear_backward(const Tensor& grad_y, const Tensor& grad_x,
                                            bool align_corners, bool accumulate) {
  const Shape& in = grad_x.shape;
  const Shape& out = grad_y.shape;
  if (in.elements() == 0 || out.elements() == 0) return;
  check_upsample(in, out);
  check_fp32("upsample_bilinear_backward", {&grad_y, &grad_x});
  const Plan plan(scratch(Plan::bytes(in, out, threads_)), in, out, align_corners);
  const std::int64_t sums_per_thread = out.width() * out.channels();
  const std::int64_t item = sums_per_thread * out.height() / in.height();
  parallel_for(in.batch() * in.height(), item, threads_, [&](std::int64_t begin, std::int64_t end) {
    float* sums = plan.row_sums + omp_get_thread_num() * sums_per_thread;
    for (std::int64_t row = begin; row < end; ++row) {
      upsample_grad_row(plan, grad_y, grad_x, accumulate, row, sums);
    }
  });
}

}  // namespace lockstep
