#pragma once
// Channels in slices of nearly equal size.

#include <algorithm>
#include <cstdint>

#include "backend/cpu/conv/products/products.h"

namespace lockstep::matmul {

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
