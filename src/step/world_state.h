#pragma once
// What the processes of a run tell each other, so that each of them knows what is known of all
// ranks. All are collective: every process calls them in the same order, between steps or when one
// is finished. One process alone knows it all.

#include <span>
#include <vector>

#include "lockstep/optim/optimizer.h"
#include "lockstep/sync/sync_group.h"
#include "step/replica.h"
#include "step/step.h"
#include "sync/byte_stream.h"

namespace lockstep {

/// What a loss is divided by is counted over all processes, each of which may have labels of its
/// own places alone (Batch::own_places_only).
class SharedLabelCounts {
 public:
  /// `group` outlives it.
  explicit SharedLabelCounts(SyncGroup& group) : group_(group) {}

  /// The batch itself, or one with its samples and the label counts of all processes; good until
  /// the next call. Throws Error for own places without counts.
  const Batch& share(const Batch& batch);

 private:
  SyncGroup& group_;
  Batch counted_;
  std::vector<Bytes> all_;  // [process]
};

/// batches [index]: rank index % ranks has evaluated it. Confusion matrices are added up.
void share_evaluation(SyncGroup& group, std::span<EvalOutcome> batches,
                      std::span<std::int64_t> confusion);

/// Process 0's becomes everyone's.
void share_state(SyncGroup& group, ReplicaState& state);

/// Every process has what its ranks own of it.
void share_optimizer_state(SyncGroup& group, OptimizerState& state);

}  // namespace lockstep
