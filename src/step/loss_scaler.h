#pragma once
// A rank's loss scale (LossScaleOptions). Without one it is 1, gradients are not looked at, and
// nothing changes: who uses it does not ask which it is.

#include <optional>
#include <vector>

#include "lockstep/nn/parameter_store.h"
#include "lockstep/parallel/options.h"
#include "step/step.h"

namespace lockstep {

/// Owned by its replica's TrainStep, used by the rank's thread.
class LossScaler {
 public:
  /// `sums`: of the rank, in device memory; `losses`: how many of them are in use.
  LossScaler(const std::optional<LossScaleOptions>& options, Backend& backend, StepSums& sums,
             std::size_t losses);

  /// What the gradients of the losses are multiplied by.
  DeviceScalar<float> scale() const;
  /// What the gradients of the parameters are multiplied by in turn.
  DeviceScalar<float> inverse() const;
  /// Steps that were left out; null: none ever.
  const std::int64_t* skipped() const;

  /// Adds the numbers of this rank that all ranks' updates look at, and are left out where one is
  /// not finite: what `check` has found, or without a scale the losses.
  void add_indicators(std::vector<const double*>& indicators) const;
  /// Sets the indicators of all ranks.
  void set_indicators(std::vector<const double*> all) { indicators_ = std::move(all); }

  /// Looks for gradients of this rank, in so many parts (ParameterStore::grads_of_part), that are
  /// not finite. Returns whether there is anything now that other ranks look at: they must wait.
  bool check(const ParameterStore& store, std::size_t parts);
  /// The next step's scale, once all ranks have checked.
  void update();

  LossScaleState state() const;
  void set_state(const LossScaleState& state);

 private:
  Tensor state_tensor() const;

  const std::optional<LossScaleOptions> options_;
  Backend& backend_;
  StepSums& sums_;
  const std::size_t losses_;
  std::vector<const double*> indicators_;
};

}  // namespace lockstep
