#pragma once
// Channels and rows in parts of nearly equal size.

#include <algorithm>
#include <cstdint>

#include "backend/cpu/conv/products/products.h"

namespace lockstep::matmul {

/// The size of blocks of at most `most` rows such that each thread gets as many blocks. REQUIRES:
/// there are rows.
inline std::int64_t even_block(std::int64_t rows, std::int64_t most, int threads) {
  const std::int64_t blocks = (rows + threads * most - 1) / (threads * most) * threads;
  return (rows + blocks - 1) / blocks;
}

/// Channels [begin, begin + count), `padded` of them where they are multiplied.
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

}  // namespace lockstep::matmul
