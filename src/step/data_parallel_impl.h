#pragma once
// What a DataParallel is made of. Construction and the training step are in data_parallel.cpp,
// evaluation and state in data_parallel_state.cpp.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "step/check_options.h"
#include "step/gradient_hook.h"
#include "step/one_thread.h"
#include "step/replica.h"
#include "step/replica_group.h"
#include "step/scatter.h"
#include "step/world_reducer.h"
#include "step/world_state.h"

namespace lockstep {

struct DataParallel::Impl {
  /// A step that has been begun.
  struct StepUnderWay {
    std::int64_t step = 0;
    int slot = 0;
  };

  struct EvaluationWork;

  explicit Impl(DataParallelOptions&& run_options);
  void build();
  void make_replicas();
  void call_on_replicate();
  void check_placement() const;
  std::string placement_obstacle() const {
    return lockstep::placement_obstacle(options, exchange, replicas.front()->network());
  }

  const RankLayout& rank_layout() const { return sync_group.rank_layout(); }
  int ranks() const { return rank_layout().ranks(); }
  int first() const { return rank_layout().first_rank(); }
  std::unique_ptr<TrainingReplica>& replica_at(int rank) {
    return replicas[static_cast<std::size_t>(rank - first())];
  }
  /// Does work on all ranks. A thread that is left behind goes on with it after this has thrown:
  /// here and in the two below, work refers to no variable of the function that gives it. What a
  /// user hands in to be read, a state or a batch, is not copied.
  void run(const std::function<void(TrainingReplica&)>& work) {
    group->run([this, work](int rank) { work(*replica_at(rank)); });
  }
  /// Does work in which no rank waits for another. What it throws ends nothing, unless other
  /// processes go on to where they wait for this one.
  void attempt(const std::function<void(int rank)>& work);
  /// The same on the first rank of this process.
  void attempt_on_first(const std::function<void(TrainingReplica&)>& work) {
    attempt([this, work](int rank) {
      if (rank == first()) work(*replica_at(rank));
    });
  }
  void check_between_steps(const char* what) const;

  /// `whose`: what takes at most so many samples.
  void check_batch(const Batch& batch, std::int64_t most, const char* whose) const;
  StepScalars scalars(std::span<const Batch> batches, std::int64_t step, float lr);
  /// Begins a step on all ranks.
  void dispatch(StepInput input);
  /// A rank's share of an evaluation.
  void evaluate_own(EvaluationWork& work, int rank);
  void wait_for(const StepUnderWay& step);
  /// `first`: the one that is finished.
  void give_up_steps(const StepUnderWay& first);

  const DataParallelOptions options;
  const GradientExchangeChoice exchange;
  SyncGroup sync_group;
  Scatter scatter;
  SharedLabelCounts shared_labels;
  std::unique_ptr<WorldGradients> world_gradients;  // null: one process
  std::unique_ptr<HookedGradients> hooked_gradients;
  std::vector<std::unique_ptr<TrainingReplica>> replicas;  // [own rank]
  std::vector<StepOutcome> outcomes;                       // [rank] of the step finished last
  PeerExchange outcome_exchange;                           // brings the other processes'
  std::vector<RankStep> rank_steps;                        // [rank], of the same step
  std::vector<StepUnderWay> under_way;                     // the oldest first
  StepInput begun;  // of the last step: a thread that is left behind may still be in it
  int next_slot = 0;
  float scale_in_use = 1;            // the loss scale of the next step to be finished
  std::vector<std::int64_t> staged;  // samples of the staged batch; empty: none
  RecordingSchedule recording_schedule;
  OneThread caller;
  std::unique_ptr<ReplicaGroup> group;  // last: its threads use everything above
};

}  // namespace lockstep
