#pragma once
// One rank's gradients summed over all ranks while the backward pass still runs: each bucket's
// all-reduce starts as soon as its last gradient is issued.

#include <cstdint>
#include <set>
#include <vector>

#include "step/gradient_buckets.h"
#include "sync/all_reduce.h"

namespace lockstep {

/// Owned by the rank's gradient exchange, used by the rank's thread. Once per step: `begin`,
/// `layer_done` for every layer from the last to the first, a barrier of all ranks, `finish`.
class BucketedSum {
 public:
  /// `grads`: the flat gradients. `all_reduce` outlives the object.
  BucketedSum(AllReduce& all_reduce, float* grads, std::vector<GradientBucket> buckets)
      : all_reduce_(all_reduce), grads_(grads), buckets_(std::move(buckets)) {}

  /// A step on a global batch of `batch` samples. The first one of its size overlaps with nothing:
  /// shapes are new to the replicas, so that memory may grow during the pass. Growing waits for
  /// GPUs, which must not wait meanwhile for a replica that is held up by just that.
  void begin(std::int64_t batch);
  /// The backward pass has issued the gradients of `layer` and of all after it.
  void layer_done(std::size_t layer);
  /// What the rank's stream is given from now on finds sums in the gradients.
  void finish();

 private:
  void start_next();

  AllReduce& all_reduce_;
  float* const grads_;
  const std::vector<GradientBucket> buckets_;
  std::size_t started_ = 0;  // buckets of this step
  bool overlaps_ = false;
  std::set<std::int64_t> known_batches_;
};

}  // namespace lockstep
