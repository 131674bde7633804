#include "step/bucketed_sum.h"

namespace lockstep {

void BucketedSum::begin(std::int64_t batch) {
  started_ = 0;
  overlaps_ = !known_batches_.insert(batch).second;
}

void BucketedSum::layer_done(std::size_t layer) {
  if (!overlaps_) return;
  while (started_ < buckets_.size() && buckets_[started_].ready_after >= layer) start_next();
}

void BucketedSum::finish() {
  while (started_ < buckets_.size()) start_next();
  all_reduce_.finish();
}

void BucketedSum::start_next() {
  const GradientBucket& bucket = buckets_[started_++];
  all_reduce_.start(grads_ + bucket.begin, bucket.end - bucket.begin);
}

}  // namespace lockstep
