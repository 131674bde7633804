#pragma once
// How a Winograd convolution is cut into blocks and sums. The sums of the weights' gradient are cut
// by the shape only, so that their order, and with it every bit, is the same for any number of
// threads.

#include <algorithm>
#include <cstdint>

#include "backend/cpu/winograd/gemm.h"
#include "backend/cpu/winograd/transforms.h"
#include "backend/cpu/winograd/vec.h"
#include "lockstep/backend/convolutions.h"

namespace lockstep::winograd {

// Transformed tiles of one block: beside the transformed kernels of one point, or one sum, they
// should stay in a second-level cache; within that, longer blocks are faster. The bits depend on
// the second, but not on the first.
inline constexpr std::int64_t kBlockBytes = 256 * 1024;
inline constexpr std::int64_t kSumBlockBytes = 256 * 1024;
// Partial sums of an image's gradient of the weights, so that threads of a large processor have
// work when there are few images: of so many tiles each that merging them costs little, and of so
// many bytes together that they stay in a cache.
inline constexpr std::int64_t kMaxSums = 8;
inline constexpr std::int64_t kTilesPerSum = 512;
inline constexpr std::int64_t kSumBytes = 1024 * 1024;
// Sums of images that are under way together.
inline constexpr std::int64_t kWaveBytes = 16 * 1024 * 1024;
// Blocks of the weights' gradient are multiples of so many tiles, for vectors of any width: the
// sums' order, and with it every bit, depends on the block.
inline constexpr std::int64_t kSumGroup = 6;
// Channels of one sum, which is 512 KiB at most.
inline constexpr std::int64_t kSliceOut = 64, kSliceIn = 128;

inline std::int64_t padded(std::int64_t channels) {
  return (channels + kChannelUnit - 1) / kChannelUnit * kChannelUnit;
}

/// Distance of two points of transformed data, rows x columns for each. They lie one line further
/// apart than the data needs: power-of-two distances would send all sixteen points to the same few
/// lines of the cache.
inline std::int64_t point_stride(std::int64_t rows, std::int64_t columns) {
  return rows * columns + kLine;
}
inline std::int64_t point_floats(std::int64_t rows, std::int64_t columns) {
  return kPoints * point_stride(rows, columns);
}

/// Tiles per block such that their points fill `bytes`, rounded to `group` tiles.
inline std::int64_t tiles_per_block(std::int64_t channels, std::int64_t bytes, std::int64_t group) {
  const std::int64_t fit = bytes / (kPoints * channels * std::int64_t{sizeof(float)});
  return std::clamp<std::int64_t>(fit / group, 2, 32) * group;
}

/// Channels [begin, begin + count), `padded` of them when transformed.
struct Slice {
  std::int64_t begin, count, padded;
};

/// Channels in slices of at most `most` (a multiple of kChannelUnit) of nearly equal size.
class Slices {
 public:
  Slices(std::int64_t channels, std::int64_t most)
      : channels_(channels),
        count_((channels + most - 1) / most),
        size_(padded((channels + count_ - 1) / count_)) {}

  std::int64_t count() const { return count_; }
  std::int64_t size() const { return size_; }
  Slice operator[](std::int64_t index) const {
    const std::int64_t begin = index * size_;
    const std::int64_t count = std::min(size_, channels_ - begin);
    return {begin, count, padded(count)};
  }

 private:
  std::int64_t channels_, count_, size_;
};

/// How an image's gradient of the weights is cut into independent sums, by its shape only: per
/// slice of the output's and slice of the input's channels, `parts` sums over a part of its tiles
/// each.
struct WeightPlan {
  Slices in, out;
  std::int64_t tiles;  // of an image
  std::int64_t parts;
  std::int64_t sum_floats;  // room of one sum
  std::int64_t block;       // tiles transformed at once; the sums' order depends on it

  WeightPlan(const ConvGeometry& geometry, std::int64_t tiles_per_image)
      : in(geometry.in_channels, kSliceIn),
        out(geometry.out_channels, kSliceOut),
        tiles(tiles_per_image),
        parts(0),
        sum_floats(point_floats(in.size(), out.size())),
        block(tiles_per_block(in.size() + out.size(), kSumBlockBytes, kSumGroup)) {
    const std::int64_t most = kSumBytes / (in.count() * sum_floats * std::int64_t{sizeof(float)});
    parts = std::clamp<std::int64_t>(std::min(tiles / kTilesPerSum, most), 1, kMaxSums);
  }

  /// Of one image and one slice of the output's channels: `parts` for each slice of the input's.
  std::int64_t sums() const { return in.count() * parts; }
  /// How many of `images` images are summed before they are added to the tree.
  std::int64_t wave(std::int64_t images) const {
    const std::int64_t bytes = sums() * sum_floats * std::int64_t{sizeof(float)};
    return std::clamp<std::int64_t>(kWaveBytes / bytes, 1, images);
  }
  /// The tiles of one part of an image.
  TileRange part(std::int64_t image, std::int64_t index) const {
    const std::int64_t begin = tiles * index / parts;
    return {image * tiles + begin, tiles * (index + 1) / parts - begin};
  }
};

}  // namespace lockstep::winograd
