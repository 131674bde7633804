#pragma once
// How a Winograd convolution is cut into blocks and sums. The sums of the weights' gradient are cut
// by the shape only, so that their order, and with it every bit, is the same for any number of
// threads.

#include <algorithm>
#include <cstdint>

#include "backend/cpu/conv/products/slices.h"
#include "backend/cpu/conv/winograd/transforms.h"
#include "backend/cpu/simd.h"

namespace lockstep::winograd {

// Transformed tiles of one block: beside the transformed kernels of one point, or one sum, they
// should stay in a second-level cache; within that, longer blocks are faster. The bits depend on
// the second, but not on the first.
inline constexpr std::int64_t kBlockBytes = 256 * 1024;
inline constexpr std::int64_t kSumBlockBytes = 512 * 1024;
// Transformed kernels of more bytes come from memory for every block, whose products then have to
// take as long as that: blocks of at least so many groups of rows.
inline constexpr std::int64_t kCachedKernelBytes = 12 * 1024 * 1024;
inline constexpr std::int64_t kLongBlockGroups = 9;
// Of more bytes, some of the channels that come out are computed at a time, for which the tiles are
// transformed anew: scratch memory is part of a training's peak.
inline constexpr std::int64_t kKernelBytes = 80 * 1024 * 1024;
// Partial sums of an image's gradient of the weights, of at least so many tiles each, so that
// threads of a large processor have work when there are few images.
inline constexpr std::int64_t kMaxParts = 8;
inline constexpr std::int64_t kTilesPerPart = 512;
// Blocks of the weights' gradient are multiples of so many tiles, for vectors of any width: the
// sums' order, and with it every bit, depends on the block.
inline constexpr std::int64_t kSumGroup = 16;
// Channels of either side of one sum, which is 256 KiB at most.
inline constexpr std::int64_t kSliceChannels = 64;

/// Distance of two points of transformed data, rows x columns for each. They lie one line further
/// apart than the data needs: power-of-two distances would send all points to the same few lines of
/// the cache.
inline std::int64_t point_stride(std::int64_t rows, std::int64_t columns) {
  return rows * columns + simd::kLine;
}

/// Tiles per block such that their points fill `bytes`, rounded to `group` tiles.
inline std::int64_t tiles_per_block(std::int64_t points, std::int64_t channels, std::int64_t bytes,
                                    std::int64_t group, std::int64_t fewest_groups = 2) {
  const std::int64_t fit = bytes / (points * channels * std::int64_t{sizeof(float)});
  return std::clamp<std::int64_t>(fit / group, fewest_groups, 32) * group;
}

/// Tiles per block of a convolution of `tiles` tiles by `threads` threads.
inline std::int64_t convolution_block(std::int64_t points, std::int64_t in, std::int64_t out,
                                      std::int64_t group, std::int64_t tiles, int threads) {
  const std::int64_t kernel_bytes = points * in * out * std::int64_t{sizeof(float)};
  const std::int64_t fewest = kernel_bytes <= kCachedKernelBytes ? 2 : kLongBlockGroups;
  const std::int64_t most = tiles_per_block(points, in + out, kBlockBytes, group, fewest);
  return matmul::even_block(tiles, most, threads);
}

/// Channels, at most `lanes` and a multiple of `panel`, whose kernels of `depth` channels are
/// transformed at once.
inline std::int64_t lanes_at_once(std::int64_t points, std::int64_t depth, std::int64_t lanes,
                                  std::int64_t panel) {
  const std::int64_t fit = kKernelBytes / (points * depth * std::int64_t{sizeof(float)});
  const std::int64_t turns = (lanes + std::max(fit, panel) - 1) / std::max(fit, panel);
  return ((lanes + turns - 1) / turns + panel - 1) / panel * panel;
}

}  // namespace lockstep::winograd
