#pragma once
// Which evaluations a training makes, and which images of the split each takes together.

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "lockstep/data/loader.h"
#include "lockstep/parallel/options.h"

namespace lockstep {

/// Whether evaluations are by batch statistics, too. Frozen statistics are the running ones.
bool measures_disparity(const Config& config, bool frozen);

/// The statistics of the evaluations behind a training's last one; `ranks`: of all processes.
std::vector<EvalStats> evaluated_at_end(const Config& config, int ranks, bool frozen);

EvalNormalizer normalizer_of(EvalStats stats);

/// Images that kBatch normalises together: at least bn.eval_images, or as many as in training on
/// so many ranks.
std::int64_t images_together(const Config& config, int ranks, const ValLoader& loader);

class EvalBatches {
 public:
  /// `each` at a time in the split's order; the last batch may have fewer.
  static EvalBatches in_order(std::int64_t images, std::int64_t each);
  /// Random companions, the same in every evaluation: neighbours may be frames of one film, and
  /// images at equal distances of one class. No batch has fewer than `least`, unless all are fewer.
  static EvalBatches shuffled(std::int64_t images, std::int64_t least);

  std::int64_t count() const { return batches_; }
  /// Images of the largest batch.
  std::int64_t most() const;
  std::vector<std::int64_t> images_of(std::int64_t batch) const;

 private:
  EvalBatches(std::vector<std::int64_t> order, std::int64_t batches, std::int64_t each);

  std::vector<std::int64_t> order_;
  std::int64_t batches_;
  std::int64_t each_;  // but for the last; 0: as equal as they can be
};

/// Those of an evaluation by `stats`: the same for any number of ranks, but for kBatch.
EvalBatches batches_of(EvalStats stats, const Config& config, int ranks, const ValLoader& loader);

}  // namespace lockstep
