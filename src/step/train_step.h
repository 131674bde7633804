#pragma once
// One rank's share of an optimizer step, in the order of the data: input, forward, losses,
// backward, gradient reduction, update. Each of these has a form that does nothing, so that the
// step reads the same in every mode: one rank, fp32, no recording, one micro-batch, one process.

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/nn/network.h"
#include "step/batch_input.h"
#include "step/gradient_reducer.h"
#include "step/loss_scaler.h"
#include "step/statistics_backup.h"
#include "step/step.h"
#include "step/step_losses.h"
#include "step/step_recording.h"
#include "step/step_totals.h"
#include "step/weight_update.h"

namespace lockstep {

class HookedGradients;
class WorldGradients;

/// What the ranks of a process know of each other's memory.
struct StepPeers {
  std::vector<ParameterStore*> stores;    // [own rank]
  std::vector<const double*> indicators;  // LossScaler::add_indicators
  WorldGradients* world = nullptr;        // null: one process
  HookedGradients* hooked = nullptr;
};

/// Owned by its replica, used by the rank's thread.
class TrainStep {
 public:
  /// All but the gradients' reduction. `network`: of training, set to the largest batch that will
  /// come. All outlive the object.
  TrainStep(const DataParallelOptions& options, SyncGroup& group, int rank, Network& network);
  /// Once all replicas of this process are there, which stay where they are.
  void join(const StepPeers& peers, const GradientExchangeChoice& exchange);

  LossNodes losses() const { return losses_.nodes(); }
  BatchInput& input() { return input_; }
  LossScaler& scaler() { return scaler_; }
  WeightUpdate& update() { return *update_; }

  /// The whole step (DataParallel::begin_step). On a GPU it is only issued.
  void issue(const StepInput& input);
  /// Waits for the device, as nothing before it does.
  void finish(int slot, StepOutcome& outcome);
  /// Forgets what steps that left the weights alone have added up and done to the running
  /// statistics. `slot`: StepInput::slot of the first of them.
  void give_up(int slot);
  /// Brings this rank's shards of the next batch to the device. `parts`: those of all ranks.
  void prefetch(std::span<const BatchPart> parts);
  /// The training-mode forward pass alone, running statistics as they were.
  void forward(const BatchPart& part);

 private:
  FixedOrderSums fixed_order_sums() const;
  std::unique_ptr<GradientReducer> make_reducer(const StepPeers& peers,
                                                const GradientExchangeChoice& exchange);
  std::span<const BatchPart> own(std::span<const BatchPart> parts) const;
  StepContext context(std::int64_t sample_offset) const;
  void upload_scalars(const StepScalars& scalars);
  void compute(const StepInput& input);
  void zero_gradients();

  /// Addresses in device memory.
  const StepScalars& scalars() const { return *static_cast<const StepScalars*>(scalars_.data()); }

  const DataParallelOptions& options_;
  SyncGroup& group_;
  Communicator& communicator_;
  const int rank_;
  Network& network_;
  Backend& backend_;
  StepLosses losses_;
  BatchInput input_;
  StepTotals totals_;
  Storage scalars_;  // StepScalars
  LossScaler scaler_;
  StepRecording recording_;
  StatisticsBackup statistics_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<WeightUpdate> update_;
  std::vector<const double*> indicators_;         // of all ranks
  std::span<const GradientPart> gradient_parts_;  // of the present step
  std::array<StepTimes, kStepSlots> times_{};
  std::array<std::int64_t, kStepSlots> steps_{};
  // Of this thread, in the present step.
  double exchange_seconds_ = 0, batch_norm_wait_ = 0;
};

}  // namespace lockstep
