#pragma once
// Which images of a split are evaluated together.

#include <cstdint>
#include <vector>

namespace lockstep {

class EvalBatches {
 public:
  /// `each` at a time in the split's order; the last batch may have fewer.
  static EvalBatches in_order(std::int64_t images, std::int64_t each);
  /// Random companions, the same in every evaluation: neighbours may be frames of one film, and
  /// images at equal distances of one class. No batch has fewer than `least`, unless all are fewer.
  static EvalBatches shuffled(std::int64_t images, std::int64_t least);

  std::int64_t count() const { return batches_; }
  std::vector<std::int64_t> images_of(std::int64_t batch) const;

 private:
  EvalBatches(std::vector<std::int64_t> order, std::int64_t batches, std::int64_t each);

  std::vector<std::int64_t> order_;
  std::int64_t batches_;
  std::int64_t each_;  // but for the last; 0: as equal as they can be
};

}  // namespace lockstep
