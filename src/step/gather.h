#pragma once
// From what the ranks' steps came to to the result of the step.

#include <span>

#include "lockstep/parallel/data_parallel.h"
#include "step/step.h"

namespace lockstep {

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
