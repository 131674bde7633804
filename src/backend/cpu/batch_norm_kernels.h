#pragma once
// What BatchNorm's forward and backward passes share on the CPU. Rows are cut into blocks by their
// number only, never by the thread count, and partial results are merged in block order: the bits
// do not depend on threads. Rounding to fp32 happens once per run of `kRunRows` rows, all merging
// is in double.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/formulas.h"
#include "lockstep/backend/backend.h"

namespace lockstep {

/// Rows summed in fp32 before they join a double: few enough to keep about 1e-7 of relative error.
inline constexpr std::int64_t kRunRows = 128;

/// The reductions want rows of at least this many values: shorter ones spend their time on the loop
/// around them.
inline constexpr std::int64_t kWideRow = 64;

/// How many rows a reduction takes as one: k rows of C channels are one row of k * C values whose
/// per-channel constants are repeated k times, and its k sums per channel are added at the end of a
/// run. Whether the rows are dense does not change which sum a row joins, nor so the bits. A power
/// of two, so that a run is whole passes. Never several rows side by side: of interleaved streams
/// the processor's prefetcher loses track (half the bandwidth from 128 channels on).
inline std::int64_t rows_per_pass(std::int64_t channels) {
  std::int64_t rows = 1;
  while (rows * channels < kWideRow) rows *= 2;
  return rows;
}

/// sums [2, C] = sums [2, k * C] with the k sums of a channel added up, in place.
inline void fold_sums(float* sums, std::int64_t channels, std::int64_t k) {
  if (k == 1) return;
  for (std::int64_t half = 0; half < 2; ++half) {
    const float* wide = sums + half * k * channels;
    float* narrow = sums + half * channels;
    for (std::int64_t c = 0; c < channels; ++c) {
      float sum = wide[c];
      for (std::int64_t i = 1; i < k; ++i) sum += wide[i * channels + c];
      narrow[c] = sum;
    }
  }
}

/// The rows of a tensor cut into equal parts, and each part into at most `kMaxBlocks` blocks of
/// whole runs, which depend on the rows of the part alone.
struct RowBlocks {
  static constexpr std::int64_t kMaxBlocks = 64;

  RowBlocks(std::int64_t row_count, std::int64_t part_count)
      : parts(part_count), part_rows(row_count / part_count) {
    const std::int64_t runs = (part_rows + kRunRows - 1) / kRunRows;
    block_rows = std::max<std::int64_t>(1, (runs + kMaxBlocks - 1) / kMaxBlocks) * kRunRows;
    per_part = (part_rows + block_rows - 1) / block_rows;
    count = parts * per_part;
  }
  /// Rows [begin, end) of the tensor.
  std::int64_t begin(std::int64_t block) const {
    return block / per_part * part_rows + block % per_part * block_rows;
  }
  std::int64_t end(std::int64_t block) const {
    return std::min(begin(block) + block_rows, (block / per_part + 1) * part_rows);
  }

  std::int64_t parts, part_rows;
  std::int64_t block_rows;
  std::int64_t per_part;  // blocks; block b is one of part b / per_part
  std::int64_t count;     // of all blocks
};

/// Views into the backend's scratch memory for a reduction over rows, one entry per block. k:
/// rows_per_pass.
struct ReductionScratch {
  double* partials;  // [blocks, 2, C]
  float* runs;       // [blocks, 3, k * C]: two sums and, for the moments, the pivot
  std::int64_t partial_size, run_size;

  static std::size_t bytes(const RowBlocks& blocks, std::int64_t channels, std::int64_t k) {
    return static_cast<std::size_t>(blocks.count * channels) *
           (2 * sizeof(double) + 3 * static_cast<std::size_t>(k) * sizeof(float));
  }
  ReductionScratch(void* memory, const RowBlocks& blocks, std::int64_t channels, std::int64_t k)
      : partials(static_cast<double*>(memory)),
        runs(reinterpret_cast<float*>(partials + blocks.count * 2 * channels)),
        partial_size(2 * channels),
        run_size(3 * k * channels) {}
  double* partial(std::int64_t block) const { return partials + block * partial_size; }
  float* run(std::int64_t block) const { return runs + block * run_size; }
};

/// Per-channel constants of y = (x - mean) * scale + shift, repeated k times (rows_per_pass).
/// Forward and backward passes take them from the same fp32 values by the same expressions, so that
/// the backward pass recomputes y's sign exactly.
struct ChannelScale {
  float* mean;   // [k * C]
  float* scale;  // [k * C] gamma * invstd
  float* shift;  // [k * C] beta

  static std::size_t bytes(std::int64_t channels, std::int64_t k = 1) {
    return static_cast<std::size_t>(k * channels) * 3 * sizeof(float);
  }
  ChannelScale(void* memory, const float* mean_of, const float* invstd,
               const AffineParameters& affine, std::int64_t channels, std::int64_t k = 1)
      : mean(static_cast<float*>(memory)), scale(mean + k * channels), shift(scale + k * channels) {
    for (std::int64_t i = 0; i < k * channels; ++i) {
      const std::int64_t c = i % channels;
      mean[i] = mean_of[c];
      scale[i] = affine.weight != nullptr ? affine.weight[c] * invstd[c] : invstd[c];
      shift[i] = affine.bias != nullptr ? affine.bias[c] : 0.0F;
    }
  }
};

/// y = normalize(x) + residual, behind a ReLU or not; y may be x.
struct Normalization {
  Tensor x, residual, y;
  ChannelScale scale;
  bool relu;
};

/// Normalises rows [begin, end).
using NormalizeRows = void (*)(const Normalization& n, std::int64_t begin, std::int64_t end);
NormalizeRows normalize_rows_of(const Normalization& n);

/// What `a` asks for, with its scales in `memory` of normalization_bytes, a multiple of a line.
Normalization normalization_of(const BatchNormInference& a, void* memory);
std::size_t normalization_bytes(std::int64_t channels);

}  // namespace lockstep
