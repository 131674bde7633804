// Bilinear interpolation with PyTorch's index arithmetic. Backward gathers: each input pixel asks
// the output pixels that read it, first along columns and then along rows, so the order of
// additions is fixed.

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "backend/cpu/element.h"
#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/cpu/prefetch.h"
#include "backend/cpu/stream_store.h"
#include "backend/cpu/vec.h"
#include "backend/formulas.h"

namespace lockstep {
namespace {

using vec::Floats;

void fill_sources(InterpolationSource* sources, std::int64_t input, std::int64_t output,
                  bool align_corners) {
  const InterpolationAxis axis(input, output, align_corners);
  for (std::int32_t o = 0; o < axis.output; ++o) sources[o] = interpolation_source(axis, o);
}

/// The output positions that read an input position along one axis, and how much of it each takes.
struct Readers {
  std::int64_t begin = 0, end = 0;
  const float* weights = nullptr;  // [end - begin]
};

/// Both ends of a source grow with the output position, so the readers of an input are one range.
/// `weights` [2 * output], because an output reads at most two inputs.
void fill_readers(Readers* readers, float* weights, const InterpolationSource* sources,
                  std::int64_t input, std::int64_t output) {
  std::fill_n(readers, input, Readers{output, 0});
  for (std::int64_t o = 0; o < output; ++o) {
    for (const std::int64_t i : {sources[o].low, sources[o].high}) {
      readers[i].begin = std::min(readers[i].begin, o);
      readers[i].end = std::max(readers[i].end, o + 1);
    }
  }
  for (std::int64_t i = 0; i < input; ++i) {
    readers[i].weights = weights;
    for (std::int64_t o = readers[i].begin; o < readers[i].end; ++o) {
      *weights++ = interpolation_weight(sources[o], i);
    }
  }
}

/// Tables of one call, and one row of sums per thread, in the backend's scratch memory.
struct Plan {
  InterpolationSource *rows, *columns;
  Readers *row_readers, *column_readers;
  float* weights;   // of the readers: [2 * (output height + width)]
  float* row_sums;  // [threads, output width * channels]
  std::int64_t input_height;

  static std::size_t bytes(const Shape& in, const Shape& out, int threads) {
    const auto sources = static_cast<std::size_t>(out.height() + out.width());
    const auto readers = static_cast<std::size_t>(in.height() + in.width());
    const auto sums = static_cast<std::size_t>(threads * out.width() * out.channels());
    return sources * (sizeof(InterpolationSource) + 2 * sizeof(float)) + readers * sizeof(Readers) +
           sums * sizeof(float);
  }

  Plan(void* scratch, const Shape& in, const Shape& out, bool align_corners)
      : rows(static_cast<InterpolationSource*>(scratch)),
        columns(rows + out.height()),
        row_readers(reinterpret_cast<Readers*>(columns + out.width())),
        column_readers(row_readers + in.height()),
        weights(reinterpret_cast<float*>(column_readers + in.width())),
        row_sums(weights + 2 * (out.height() + out.width())),
        input_height(in.height()) {
    fill_sources(rows, in.height(), out.height(), align_corners);
    fill_sources(columns, in.width(), out.width(), align_corners);
    fill_readers(row_readers, weights, rows, in.height(), out.height());
    fill_readers(column_readers, weights + 2 * out.height(), columns, in.width(), out.width());
  }
};

/// kStream: y streams().
template <typename T, bool kStream>
void upsample_row(const Plan& plan, const Tensor& x, const Tensor& y, std::int64_t row) {
  const std::int64_t channels = x.shape.channels();
  const std::int64_t sample = row / y.shape.height();
  const InterpolationSource& vertical = plan.rows[row % y.shape.height()];
  const T* image = row_of<const T>(x, sample * x.shape.height() * x.shape.width());
  const T* top = image + vertical.low * x.shape.width() * x.row_stride;
  const T* bottom = image + vertical.high * x.shape.width() * x.row_stride;
  T* target = row_of<T>(y, row * y.shape.width());
  for (std::int64_t ox = 0; ox < y.shape.width(); ++ox, target += y.row_stride) {
    if constexpr (!kStream) prefetch_to_write(target, y.row_stride, channels);
    const InterpolationSource& horizontal = plan.columns[ox];
    const std::int64_t left = horizontal.low * x.row_stride;
    const std::int64_t right = horizontal.high * x.row_stride;
    const float w00 = vertical.low_weight * horizontal.low_weight;
    const float w01 = vertical.low_weight * horizontal.high_weight;
    const float w10 = vertical.high_weight * horizontal.low_weight;
    const float w11 = vertical.high_weight * horizontal.high_weight;
    const auto blend = [&](auto v00, auto v01, auto v10, auto v11) {
      return w00 * v00 + w01 * v01 + w10 * v10 + w11 * v11;
    };
    if constexpr (kStream) {
      for (std::int64_t c = 0; c < channels; c += vec::kLanes) {
        stream(target + c, blend(vec::load(top + left + c), vec::load(top + right + c),
                                 vec::load(bottom + left + c), vec::load(bottom + right + c)));
      }
    } else {
#pragma omp simd
      for (std::int64_t c = 0; c < channels; ++c) {
        target[c] = blend(top[left + c], top[right + c], bottom[left + c], bottom[right + c]);
      }
    }
  }
}

/// target = the readers' weighted values at source[reader * stride], added in their order to what
/// is there, or to 0. Some vectors at once: their sums do not wait for one another.
template <int kVectors, bool kStream, typename From, typename To>
inline void sum_readers(const Readers& readers, const From* source, std::int64_t stride,
                        bool accumulate, To* target) {
  Floats sums[kVectors] = {};
  for (int v = 0; accumulate && v < kVectors; ++v) sums[v] = vec::load(target + v * vec::kLanes);
  for (std::int64_t o = readers.begin; o < readers.end; ++o) {
    const Floats weight = vec::broadcast(readers.weights[o - readers.begin]);
    const From* from = source + o * stride;
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = vec::fma(weight, vec::load(from + v * vec::kLanes), sums[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    if constexpr (kStream) {
      stream(target + v * vec::kLanes, sums[v]);
    } else {
      vec::store(target + v * vec::kLanes, sums[v]);
    }
  }
}

/// The same of `channels` values.
template <bool kStream = false, typename From, typename To>
void sum_pixels(const Readers& readers, const From* source, std::int64_t stride,
                std::int64_t channels, bool accumulate, To* target) {
  constexpr int kMost = 4;
  std::int64_t c = 0;
  for (; c + kMost * vec::kLanes <= channels; c += kMost * vec::kLanes) {
    sum_readers<kMost, kStream>(readers, source + c, stride, accumulate, target + c);
  }
  for (; c + vec::kLanes <= channels; c += vec::kLanes) {
    sum_readers<1, kStream>(readers, source + c, stride, accumulate, target + c);
  }
  for (; c < channels; ++c) {
    float sum = 0;
    if (accumulate) sum = target[c];
    for (std::int64_t o = readers.begin; o < readers.end; ++o) {
      sum = std::fma(readers.weights[o - readers.begin], source[o * stride + c], sum);
    }
    target[c] = sum;
  }
}

/// sums [output width, C] = the output rows that read input row iy, weighted. Meanwhile those
/// that the next input row reads beside these are fetched: the processor does not foresee so many
/// streams.
template <typename T>
void sum_output_rows(const Plan& plan, const Tensor& grad_y, std::int64_t sample, std::int64_t iy,
                     float* sums) {
  const Shape& out = grad_y.shape;
  const std::int64_t channels = out.channels();
  const std::int64_t row_stride = out.width() * grad_y.row_stride;
  const Readers readers = plan.row_readers[iy];
  const T* image = row_of<const T>(grad_y, sample * out.height() * out.width());
  const Readers next = iy + 1 < plan.input_height ? plan.row_readers[iy + 1] : Readers{};
  for (std::int64_t ox = 0; ox < out.width(); ++ox, sums += channels) {
    const T* column = image + ox * grad_y.row_stride;
    for (std::int64_t oy = std::max(readers.end, next.begin); oy < next.end; ++oy) {
      prefetch_pixel<0>(column + oy * row_stride, channels);
    }
    sum_pixels(readers, column, row_stride, channels, false, sums);
  }
}

/// kStream: grad_x streams(), and is not added to.
template <typename T, bool kStream>
void upsample_grad_row(const Plan& plan, const Tensor& grad_y, const Tensor& grad_x,
                       bool accumulate, std::int64_t row, float* sums) {
  const std::int64_t channels = grad_x.shape.channels();
  const std::int64_t width = grad_x.shape.width();
  const std::int64_t height = grad_x.shape.height();
  sum_output_rows<T>(plan, grad_y, row / height, row % height, sums);
  for (std::int64_t ix = 0; ix < width; ++ix) {
    T* target = row_of<T>(grad_x, row * width + ix);
    const Readers readers = plan.column_readers[ix];
    sum_pixels<kStream>(readers, sums, channels, channels, accumulate, target);
  }
}

}  // namespace

void CpuPooling::upsample_bilinear_forward(const Tensor& x, const Tensor& y, bool align_corners) {
  check_resize_forward("upsample_bilinear_forward", x, y);
  if (x.shape.elements() == 0) return;
  const Plan plan(cpu_.scratch(Plan::bytes(x.shape, y.shape, cpu_.threads())), x.shape, y.shape,
                  align_corners);
  const auto upsample = with_element_type(y.dtype, [&]<typename T>(T) {
    return streams(y) ? upsample_row<T, true> : upsample_row<T, false>;
  });
  parallel_for(y.shape.batch() * y.shape.height(), y.shape.width() * y.shape.channels(),
               cpu_.threads(), [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) upsample(plan, x, y, row);
                 finish_streams();
               });
}

void CpuPooling::upsample_bilinear_backward(const Tensor& grad_y, const Tensor& grad_x,
                                            bool align_corners, bool accumulate) {
  check_resize_backward("upsample_bilinear_backward", grad_y, grad_x);
  const Shape& in = grad_x.shape;
  const Shape& out = grad_y.shape;
  if (in.elements() == 0) return;
  const Plan plan(cpu_.scratch(Plan::bytes(in, out, cpu_.threads())), in, out, align_corners);
  const std::int64_t sums_per_thread = out.width() * out.channels();
  const auto grad_row = with_element_type(grad_x.dtype, [&]<typename T>(T) {
    const bool streamed = !accumulate && streams(grad_x);
    return streamed ? upsample_grad_row<T, true> : upsample_grad_row<T, false>;
  });
  const std::int64_t item = sums_per_thread * out.height() / in.height();
  parallel_for(in.batch() * in.height(), item, cpu_.threads(),
               [&](std::int64_t begin, std::int64_t end) {
                 float* sums = plan.row_sums + omp_get_thread_num() * sums_per_thread;
                 for (std::int64_t row = begin; row < end; ++row) {
                   grad_row(plan, grad_y, grad_x, accumulate, row, sums);
                 }
                 finish_streams();
               });
}

}  // namespace lockstep
