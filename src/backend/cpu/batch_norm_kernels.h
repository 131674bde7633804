#pragma once
// What BatchNorm's forward and backward passes share on the CPU. Rows are cut into blocks by their
// number only, never by the thread count, and partial results are merged in block order: the bits
// do not depend on threads. Rounding to fp32 happens once per run of `kRunRows` rows, all merging
// is in double.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "lockstep/backend/backend.h"
#include "lockstep/backend/formulas.h"

namespace lockstep {

/// Rows summed in fp32 before they join a double: few enough to keep about 1e-7 of relative error.
inline constexpr std::int64_t kRunRows = 128;

/// Narrow rows are summed eight at a time, which keeps the sums in registers longer; of rows of
/// this many channels or more only two, because the processor's prefetcher loses track of many
/// distant streams.
inline constexpr std::int64_t kWideRow = 64;

/// Rows that the two functions below look ahead.
inline constexpr std::int64_t kRowsAhead = 16;

/// Fetches a row ahead of `row` into the cache when rows do not follow one another: a channel range
/// of a concatenation is a stream of single cache lines, which the processor does not foresee (four
/// times slower without this). Always inlined, because GCC 12 takes a function that only prefetches
/// for one without effect and drops its calls.
[[gnu::always_inline]] inline void prefetch_row(const float* row, std::int64_t row_stride,
                                                std::int64_t channels) {
  if (row_stride != channels) __builtin_prefetch(row + kRowsAhead * row_stride, 0);
}

/// As prefetch_row, for rows that will be written.
[[gnu::always_inline]] inline void prefetch_row_to_write(const float* row, std::int64_t row_stride,
                                                         std::int64_t channels) {
  if (row_stride != channels) __builtin_prefetch(row + kRowsAhead * row_stride, 1);
}

/// body(0), ..., body(kCount - 1) without a loop: GCC vectorises a loop over channels only when the
/// loop over a few rows inside it is gone before it looks.
template <int kCount, typename Body>
inline void unroll(const Body& body) {
  [&]<int... k>(std::integer_sequence<int, k...>) { (body(k), ...); }
  (std::make_integer_sequence<int, kCount>{});
}

/// The rows of a tensor cut into at most `kMaxBlocks` blocks of whole runs.
struct RowBlocks {
  static constexpr std::int64_t kMaxBlocks = 64;

  explicit RowBlocks(std::int64_t row_count) : rows(row_count) {
    const std::int64_t runs = (rows + kRunRows - 1) / kRunRows;
    block_rows = std::max<std::int64_t>(1, (runs + kMaxBlocks - 1) / kMaxBlocks) * kRunRows;
    count = (rows + block_rows - 1) / block_rows;
  }
  std::int64_t begin(std::int64_t block) const { return block * block_rows; }
  std::int64_t end(std::int64_t block) const { return std::min(rows, (block + 1) * block_rows); }

  std::int64_t rows;
  std::int64_t block_rows;
  std::int64_t count;
};

/// Views into the backend's scratch memory for a reduction over rows, one entry per block.
struct ReductionScratch {
  double* partials;  // [blocks, 2, C]
  float* runs;       // [blocks, 2, C]

  static std::size_t bytes(const RowBlocks& blocks, std::int64_t channels) {
    return static_cast<std::size_t>(blocks.count * 2 * channels) * (sizeof(double) + sizeof(float));
  }
  ReductionScratch(void* memory, const RowBlocks& blocks, std::int64_t channels)
      : partials(static_cast<double*>(memory)),
        runs(reinterpret_cast<float*>(partials + blocks.count * 2 * channels)) {}
};

/// Per-channel constants of y = (x - mean) * scale + shift. Forward and backward passes take them
/// from the same fp32 values by the same expressions, so that the backward pass recomputes y's sign
/// exactly.
struct ChannelScale {
  const float* mean;  // [C]
  float* scale;       // [C] gamma * invstd
  float* shift;       // [C] beta

  static std::size_t bytes(std::int64_t channels) {
    return static_cast<std::size_t>(channels) * 2 * sizeof(float);
  }
  ChannelScale(void* memory, const float* mean_, const float* invstd,
               const AffineParameters& affine, std::int64_t channels)
      : mean(mean_), scale(static_cast<float*>(memory)), shift(scale + channels) {
    for (std::int64_t c = 0; c < channels; ++c) {
      scale[c] = affine.weight != nullptr ? affine.weight[c] * invstd[c] : invstd[c];
      shift[c] = affine.bias != nullptr ? affine.bias[c] : 0.0F;
    }
  }
};

}  // namespace lockstep
