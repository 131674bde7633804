#pragma once
// What a rank of a data-parallel run has beside what users see (Replica): its share of a step and
// of an evaluation. Built and used on the rank's thread; read by others only between steps.

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/parallel/options.h"
#include "step/train_step.h"
#include "step/validation.h"

namespace lockstep {

/// Parameters, running statistics and counts of one replica, on the host.
struct ReplicaState {
  std::vector<float> values;
  std::vector<float> statistics;
  std::vector<std::int64_t> tracked;  // [layer] num_batches_tracked
};

/// What a model threw that is not of a type which failures of replicas keep, on its way to who gave
/// the model.
class ModelFailure : public Error {
 public:
  explicit ModelFailure(std::exception_ptr cause);
  const std::exception_ptr& cause() const { return cause_; }

 private:
  std::exception_ptr cause_;
};

class TrainingReplica final : public Replica {
 public:
  /// Everything but what a step needs of the other replicas (TrainStep::join). `options` and
  /// `group` outlive it. Throws ModelFailure for what the model throws.
  TrainingReplica(const DataParallelOptions& options, SyncGroup& group, int rank, int threads);

  TrainStep& step() const { return *step_; }
  Validation& validation() const { return *validation_; }

  /// Between steps.
  ReplicaState read_state() const;
  void write_state(const ReplicaState& state);

 private:
  /// All parameters, and all running statistics, as one row each.
  Tensor all_values() const;
  Tensor all_statistics() const;

  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<Validation> validation_;
};

/// All of what DataParallel hands out.
inline const TrainingReplica& training_replica(const Replica& replica) {
  return static_cast<const TrainingReplica&>(replica);
}

/// Throws ConfigError where two replicas of one model have other parameters or running statistics.
void check_same_layers(const Replica& first, const Replica& other);

}  // namespace lockstep
