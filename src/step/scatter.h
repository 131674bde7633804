#pragma once
// From a global batch to the replicas' parts of it.

#include <span>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "step/step.h"

namespace lockstep {

/// Owned by the run, used by its caller's thread. Cuts a batch into DataParallelOptions::accumulate
/// micro-batches, and each of them into parts for the ranks, both in torch.chunk's sizes.
class Scatter {
 public:
  /// `ranks`: of all processes. `options` outlives the object.
  Scatter(const DataParallelOptions& options, int ranks);

  /// The parts [rank][micro-batch] of a batch, or of one batch for each rank, in one row. Valid
  /// until the next call, and as long as the batches.
  std::span<const BatchPart> operator()(const Batch& batch);
  std::span<const BatchPart> operator()(std::span<const Batch> batches);

 private:
  BatchPart& part(int rank, int micro);

  const DataParallelOptions& options_;
  const int ranks_;
  std::vector<BatchPart> parts_;
};

/// The places of a batch of `count` samples, cut into `accumulate` micro-batches, that the ranks of
/// the layout's process work on, in rising order.
std::vector<std::int64_t> own_places(std::int64_t count, int accumulate, const RankLayout& layout);

}  // namespace lockstep
