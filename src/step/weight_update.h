#pragma once
// One rank's share of the optimizer: the state of the parameters that it updates, and the update
// itself, from the sum of all ranks' gradients to the weights of all replicas that it writes.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.h"
#include "step/averaged_weights.h"
#include "step/gradient_clip.h"
#include "step/gradient_hook.h"
#include "step/gradient_reducer.h"
#include "step/loss_scaler.h"
#include "step/step_totals.h"

namespace lockstep {

/// Owned by its replica's TrainStep, used by the rank's thread.
class WeightUpdate {
 public:
  /// What a step changes lies in `scalars`, in device memory. `share`: of the rank, whose store is
  /// `own`. All but the share outlive the object. Throws Error where replicas differ in elements.
  WeightUpdate(const DataParallelOptions& options, const UpdateShare& share,
               const ParameterStore& own, Backend& backend, const StepScalars& scalars,
               const StepTotals& totals, const LossScaler& scaler, HookedGradients& hooked,
               Communicator& communicator);

  /// Adds up the gradients that are reduced, updates, and writes to every replica of the share;
  /// adds the squares of the sums to the step's totals. Changes nothing when one of the indicators
  /// is not finite.
  void apply(GradientReducer& reducer, std::span<const double* const> indicators);

  /// The averages begin with the weights and the running statistics as they are, unless a step or
  /// a restored state has begun them.
  void begin_average();

  /// Copy this rank's share of the optimizer's state into, and out of, the state of all parameters,
  /// which is on the host. Where several ranks have all of it, one of them saves it. An average of
  /// the weights is part of the state; one without it makes the average start over.
  void save_state(OptimizerState& all) const;
  void restore_state(const OptimizerState& all);

 private:
  void allocate_slots(std::int64_t elements);

  Backend& backend_;
  const Optimizer optimizer_;
  const StepScalars& scalars_;
  const StepTotals& totals_;
  const LossScaler& scaler_;
  HookedShard hook_;
  GradientClip clip_;
  const bool saves_;
  std::int64_t begin_ = 0;              // of the elements, in the flat parameters
  std::vector<ParameterRange> ranges_;  // relative to begin_
  std::vector<float*> weights_;         // [replica of the share], own first, at begin_
  Storage slots_;                       // the optimizer's state [kSlots, elements]
  std::vector<Tensor> slot_of_;         // [index in kSlots] [1, elements]
  std::optional<AveragedWeights> average_, averaged_statistics_;
  bool average_begun_ = false;
};

}  // namespace lockstep
