#pragma once
// One rank's gradients summed over all ranks while the backward pass still runs. Parameters are
// declared in the order of their first use, and their gradients are complete in the opposite order:
// from the end of the flat gradients on, so that a bucket is one range of them. Each bucket's
// all-reduce starts as soon as its last gradient is issued.

#include <cstdint>
#include <set>
#include <vector>

#include "lockstep/nn/network.h"
#include "step/gradient_reducer.h"
#include "sync/all_reduce.h"

namespace lockstep {

/// A range of the flat gradients, summed in one call.
struct GradientBucket {
  std::int64_t begin = 0, end = 0;  // elements
  std::size_t ready_after = 0;      // the layer whose backward pass completes it (Network::layers)
};

/// All gradients of the network's parameters, in buckets of at least the sizes given (the last may
/// be smaller, a parameter is never cut), in the order in which a backward pass completes them.
std::vector<GradientBucket> plan_gradient_buckets(const Network& network,
                                                  const GradientExchangeOptions& options);

class BucketedReducer : public GradientReducer {
 public:
  /// `all_reduce`: of the rank; it outlives the object.
  BucketedReducer(const GradientRank& rank, AllReduce& all_reduce,
                  std::vector<GradientBucket> buckets)
      : rank_(rank), all_reduce_(all_reduce), buckets_(std::move(buckets)) {}

  /// The rank owns all of its own parameters, and writes to no other replica.
  UpdateShare share() const override;
  /// The first step on a batch of a size overlaps with nothing: shapes are new to the replicas, so
  /// that memory may grow during the pass. Growing waits for GPUs, which must not wait meanwhile
  /// for a replica that is held up by just that.
  std::span<const GradientPart> begin(const StepInput& input) override;
  void layer_done(std::size_t layer) override;
  void reduce(LossScaler& scaler) override;
  GradientSum sum(std::int64_t begin) override;
  void publish() override;
  double seconds() const override { return all_reduce_.seconds(); }

 private:
  void start_next();

  const GradientRank rank_;
  AllReduce& all_reduce_;
  const std::vector<GradientBucket> buckets_;
  std::size_t started_ = 0;  // buckets of this step
  bool overlaps_ = false;
  std::set<std::int64_t> known_batches_;
  const float* sum_ = nullptr;
};

}  // namespace lockstep
