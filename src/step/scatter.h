#pragma once
// From a global batch to the replicas' shards, and from the outcomes of their steps to the result
// of the step.

#include <span>
#include <vector>

#include "lockstep/data/batch.h"
#include "lockstep/parallel/options.h"
#include "step/step.h"

namespace lockstep {

struct Shard {
  std::int64_t begin = 0;  // first sample
  std::int64_t count = 0;  // may be 0
};

/// Shard `part` of a batch that is cut into `parts`: ceil(batch / parts) samples each until they
/// are used up (torch.chunk's rule).
Shard shard_of(std::int64_t batch, int parts, int part);

/// Owned by the run, used by its caller's thread. Cuts a batch into DataParallelOptions::accumulate
/// micro-batches, and each of them into the ranks' shards, both in torch.chunk's sizes.
class Scatter {
 public:
  /// `ranks`: of all processes. `options` outlives the object.
  Scatter(const DataParallelOptions& options, int ranks);

  /// Returns the shards [rank][micro-batch] of a batch, or of one batch for each rank, in one row.
  /// They are valid until the next call, and as long as the batches.
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

/// A step that is done on all ranks.
struct StepDone {
  std::int64_t step = 0;
  std::span<const StepOutcome> outcomes;  // [rank]
  bool summed_everywhere = false;  // every rank has the whole gradient, and its norm (all_reduce)
  float scale = 1;                 // the loss scale that the step was done with
};

/// `layout`: of the ranks; `ranks`: [rank], which the result then speaks of. Throws NonFiniteError
/// for a loss or a gradient that is not finite, as DataParallel::train_step says.
StepResult gather(const StepDone& done, const DataParallelOptions& options,
                  const RankLayout& layout, std::span<RankStep> ranks);

}  // namespace lockstep
