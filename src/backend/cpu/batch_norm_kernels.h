#pragma once
// What BatchNorm's forward and backward passes share on the CPU. Rows are cut into blocks by their
// number only, never by the thread count, and partial results are merged in block order: the bits
// do not depend on threads. Rounding to fp32 happens once per run of `kRunRows` rows, all merging
// is in double.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lockstep/backend/backend.h"
#include "lockstep/backend/formulas.h"

namespace lockstep {

/// Rows summed in fp32 before they join a double: few enough to keep about 1e-7 of relative error.
inline constexpr std::int64_t kRunRows = 128;

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
