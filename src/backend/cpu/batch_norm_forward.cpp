// Moments and normalisation. Two passes over memory: one reads x, one reads x and writes y.

#include "backend/cpu/batch_norm_kernels.h"
#include "backend/cpu/element.h"
#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/cpu/prefetch.h"
#include "backend/cpu/stream_store.h"
#include "backend/cpu/vec.h"
#include "backend/moments.h"

namespace lockstep {
namespace {

/// A merge of two moments, in additions (parallel_for).
constexpr std::int64_t kMergeWork = 16;

/// Rows of a run behind its pivot.
constexpr std::int64_t kPivotRows = 8;

// pivot [C] = about the mean of `rows` rows: that of a few of them, spread over all. Deviations
// from it are small, so that their squares do not cancel: not when |mean| is much larger than the
// standard deviation, and not when the first row is an outlier. Of equal rows it is their very
// value.
template <typename T>
void choose_pivot(const T* x, std::int64_t row_stride, std::int64_t rows, std::int64_t channels,
                  float* __restrict pivot) {
  const std::int64_t step = std::max<std::int64_t>(1, rows / kPivotRows);
  std::fill_n(pivot, channels, 0.0F);
  std::int64_t taken = 0;
  for (std::int64_t r = 0; r < rows; r += step, ++taken) {
    const T* row = x + r * row_stride;
    for (std::int64_t c = 0; c < channels; ++c) pivot[c] += row[c] - x[c];
  }
  const float share = 1.0F / static_cast<float>(taken);
  for (std::int64_t c = 0; c < channels; ++c) pivot[c] = x[c] + pivot[c] * share;
}

// sums += d, squares += d*d of one row, d = x - pivot; all [width].
template <typename T>
void add_deviations(const T* __restrict x, std::int64_t width, const float* __restrict pivot,
                    float* __restrict sums, float* __restrict squares) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const float d = x[i] - pivot[i];
    sums[i] += d;
    squares[i] += d * d;
  }
}

// work [3, k * C]: the first [2, C] = sums of the deviations of `rows` rows and of their squares,
// the last [k * C] = what they deviate from.
template <typename T>
void sum_run(const T* x, std::int64_t row_stride, std::int64_t rows, std::int64_t channels,
             std::int64_t k, float* work) {
  const std::int64_t width = k * channels;
  float* squares = work + width;
  float* pivot = work + 2 * width;
  std::fill_n(work, 2 * width, 0.0F);
  choose_pivot(x, row_stride, rows, channels, pivot);
  for (std::int64_t i = 1; i < k; ++i) std::copy_n(pivot, channels, pivot + i * channels);
  std::int64_t r = 0;
  for (; r + k <= rows; r += k) {
    if (row_stride == channels) {
      add_deviations(x + r * row_stride, width, pivot, work, squares);
      continue;
    }
    for (std::int64_t i = 0; i < k; ++i) {
      const T* row = x + (r + i) * row_stride;
      prefetch_to_read(row, row_stride, channels);
      add_deviations(row, channels, pivot, work + i * channels, squares + i * channels);
    }
  }
  fold_sums(work, channels, k);
  for (; r < rows; ++r) {
    add_deviations(x + r * row_stride, channels, pivot, work, work + channels);
  }
}

// Merges one run's moments about its pivot into `partial` [2, C] = (mean, M2) of `count` rows.
void merge_run(const float* __restrict pivot, const float* __restrict sums, std::int64_t rows,
               std::int64_t count, std::int64_t channels, double* __restrict partial) {
  const double inverse = 1.0 / static_cast<double>(rows);
#pragma omp simd
  for (std::int64_t c = 0; c < channels; ++c) {
    const double sum = sums[c];
    const double m2 = sums[channels + c] - sum * sum * inverse;
    const ChannelMoments run{rows, pivot[c] + sum * inverse, m2 > 0 ? m2 : 0.0};
    const ChannelMoments merged = merge({count, partial[c], partial[channels + c]}, run);
    partial[c] = merged.mean;
    partial[channels + c] = merged.m2;
  }
}

// partial [2, C] = (mean, M2) of rows [begin, end); `work` [3, k * C].
template <typename T>
void block_moments(const Tensor& x, std::int64_t begin, std::int64_t end, std::int64_t k,
                   float* work, double* partial) {
  const std::int64_t channels = x.shape.channels();
  std::fill_n(partial, 2 * channels, 0.0);
  for (std::int64_t run = begin; run < end; run += kRunRows) {
    const std::int64_t rows = std::min(kRunRows, end - run);
    sum_run(row_of<const T>(x, run), x.row_stride, rows, channels, k, work);
    merge_run(work + 2 * k * channels, work, rows, run - begin, channels, partial);
  }
}

// Merges the slots into the memory of what the backward pass and evaluation need, and derives that.
void finish_statistics(const BatchNormForward& a, std::int64_t channels) {
  const std::int64_t count = merge_moments(a.slots, channels, a.saved.data);
  for (std::int64_t c = 0; c < channels; ++c) {
    const float mean = a.saved.data[c];
    const double m2 = a.saved.data[channels + c];
    const double var = m2 / static_cast<double>(count);
    const double invstd = inverse_std(var, a.eps, a.eps_mode);
    a.saved.data[channels + c] = static_cast<float>(invstd);
    a.saved.data[2 * channels + c] =
        variance_has_gradient(var, a.eps, a.eps_mode) ? static_cast<float>(invstd * invstd) : 0.0F;
    if (a.running.mean != nullptr) {
      a.running.mean[c] = update_running(a.running.mean[c], mean, a.running.momentum);
    }
    if (a.running.var != nullptr) {
      const double unbiased = m2 / static_cast<double>(count - 1);
      a.running.var[c] = update_running(a.running.var[c], unbiased, a.running.momentum);
    }
  }
}

/// One pixel of y, which streams().
template <bool kResidual, bool kRelu, typename T>
void stream_normalized(const ChannelScale& scale, const T* x, const T* residual,
                       std::int64_t channels, T* y) {
  for (std::int64_t c = 0; c < channels; c += vec::kLanes) {
    vec::Floats value = vec::fma(vec::load(x + c) - vec::load(scale.mean + c),
                                 vec::load(scale.scale + c), vec::load(scale.shift + c));
    if (kResidual) value += vec::load(residual + c);
    if (kRelu) value = value < 0.0F ? vec::Floats{} : value;
    stream(y + c, value);
  }
}

template <typename T, bool kResidual, bool kRelu, bool kStream>
void normalize_rows(const Normalization& n, std::int64_t begin, std::int64_t end) {
  const std::int64_t channels = n.x.shape.channels();
  const float* __restrict mean = n.scale.mean;
  const float* __restrict scale = n.scale.scale;
  const float* __restrict shift = n.scale.shift;
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = row_of<const T>(n.x, row);  // may be y
    const T* residual = kResidual ? row_of<const T>(n.residual, row) : nullptr;
    T* y = row_of<T>(n.y, row);
    prefetch_to_read(x, n.x.row_stride, channels);
    if constexpr (kStream) {
      stream_normalized<kResidual, kRelu>(n.scale, x, residual, channels, y);
      continue;
    }
    prefetch_to_write(y, n.y.row_stride, channels);
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) {
      float value = normalize(x[c], mean[c], scale[c], shift[c]);
      if (kResidual) value += residual[c];
      if (kRelu) value = value < 0.0F ? 0.0F : value;  // NaN passes
      y[c] = value;
    }
  }
  if constexpr (kStream) finish_streams();
}

template <typename T, bool kStream>
NormalizeRows choose_normalize_rows(bool residual, bool relu) {
  if (!residual) {
    return relu ? normalize_rows<T, false, true, kStream>
                : normalize_rows<T, false, false, kStream>;
  }
  return relu ? normalize_rows<T, true, true, kStream> : normalize_rows<T, true, false, kStream>;
}

void normalize_tensor(const Normalization& n, int threads) {
  const NormalizeRows kernel = normalize_rows_of(n);
  parallel_for(n.x.shape.rows(), n.x.shape.channels(), threads,
               [&](std::int64_t begin, std::int64_t end) { kernel(n, begin, end); });
}

// slot [2, C] = the moments of all blocks of one part.
void merge_blocks(const RowBlocks& blocks, std::int64_t part, std::int64_t channels,
                  const ReductionScratch& work, float* slot) {
  const std::int64_t begin = part * blocks.per_part;
  const std::int64_t end = begin + blocks.per_part;
  for (std::int64_t c = 0; c < channels; ++c) {
    ChannelMoments total;
    for (std::int64_t b = begin; b < end; ++b) {
      const double* partial = work.partial(b);
      total = merge(total, {blocks.end(b) - blocks.begin(b), partial[c], partial[channels + c]});
    }
    slot[c] = static_cast<float>(total.mean);
    slot[channels + c] = static_cast<float>(total.m2);
  }
}

}  // namespace

NormalizeRows normalize_rows_of(const Normalization& n) {
  // Dense outputs gain nothing: there the stores find their lines, which the processor foresees.
  const bool streamed =
      n.y.row_stride != n.y.shape.channels() && n.y.data != n.x.data && streams(n.y);
  return with_element_type(n.y.dtype, [&]<typename T>(T) {
    const auto choose = streamed ? choose_normalize_rows<T, true> : choose_normalize_rows<T, false>;
    return choose(static_cast<bool>(n.residual), n.relu);
  });
}

void CpuNorms::batch_norm_moments(const Tensor& x, float* slots, std::int64_t parts) {
  check_batch_norm_moments(x, slots, parts);
  const std::int64_t channels = x.shape.channels();
  const RowBlocks blocks(x.shape.rows(), parts);
  const std::int64_t k = rows_per_pass(channels);
  const ReductionScratch work(cpu_.scratch(ReductionScratch::bytes(blocks, channels, k)), blocks,
                              channels, k);
  const auto moments = with_element_type(x.dtype, []<typename T>(T) { return block_moments<T>; });
  parallel_for(blocks.count, blocks.block_rows * channels, cpu_.threads(),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t b = first; b < last; ++b) {
                   moments(x, blocks.begin(b), blocks.end(b), k, work.run(b), work.partial(b));
                 }
               });
  parallel_for(parts, blocks.per_part * kMergeWork * channels, cpu_.threads(),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t part = first; part < last; ++part) {
                   merge_blocks(blocks, part, channels, work, slots + part * 2 * channels);
                 }
               });
}

void CpuNorms::batch_norm_forward(const BatchNormForward& a) {
  check_operands(a);
  const std::int64_t channels = a.x.shape.channels();
  if (total_count(a.slots) == 0 && a.x.shape.rows() == 0) return;
  if (!a.slots.empty()) finish_statistics(a, channels);
  const ChannelScale scale(cpu_.scratch(ChannelScale::bytes(channels)), a.saved.data,
                           a.saved.data + channels, a.affine, channels);
  normalize_tensor({a.x, a.residual, a.y, scale, a.relu}, cpu_.threads());
}

void CpuNorms::batch_norm_inference(const BatchNormInference& a) {
  check_operands(a);
  const std::int64_t channels = a.x.shape.channels();
  normalize_tensor(normalization_of(a, cpu_.scratch(normalization_bytes(channels))),
                   cpu_.threads());
}

std::size_t normalization_bytes(std::int64_t channels) {
  constexpr std::size_t kLine = 64;
  const std::size_t invstd = static_cast<std::size_t>(channels) * sizeof(float);
  return (invstd + ChannelScale::bytes(channels) + kLine - 1) / kLine * kLine;
}

Normalization normalization_of(const BatchNormInference& a, void* memory) {
  const std::int64_t channels = a.y.shape.channels();
  auto* invstd = static_cast<float*>(memory);
  for (std::int64_t c = 0; c < channels; ++c) {
    invstd[c] = static_cast<float>(inverse_std(a.var[c], a.eps, a.eps_mode));
  }
  const ChannelScale scale(invstd + channels, a.mean, invstd, a.affine, channels);
  return {a.x, a.residual, a.y, scale, a.relu};
}

}  // namespace lockstep
