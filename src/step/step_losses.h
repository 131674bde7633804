#pragma once
// The losses of a step at the network's outputs, and the gradients that its backward pass begins
// with.

#include <memory>
#include <vector>

#include "lockstep/nn/network.h"
#include "step/batch_input.h"
#include "step/loss_scaler.h"
#include "step/step_totals.h"

namespace lockstep {

/// What losses take beside the outputs that they are at.
struct LossOperands {
  const BatchInput& input;     // targets, and what samples weigh
  const StepScalars& scalars;  // normalizers, in device memory
  const LossScaler& scaler;
  const StepTotals& totals;  // which take the sums
  Communicator& communicator;
};

/// Owned by its replica's TrainStep, used by the rank's thread.
class StepLosses {
 public:
  /// `network`: of training, set to the largest batch that will come; outlives the object.
  StepLosses(const std::vector<NamedLoss>& losses, const Network& network);

  LossNodes nodes() const { return nodes_; }
  /// Computes the losses of the present batch, after its forward pass. Writes Network::output_grad.
  void compute(const LossOperands& operands);

 private:
  void allocate_added_gradient();
  Tensor gradient_of(std::size_t loss) const;

  const Network& network_;
  Backend& backend_;
  std::vector<std::unique_ptr<LossNode>> nodes_;
  std::vector<bool> adds_;  // [loss] to the gradient that another has written
  Storage added_gradient_;  // of such a loss
};

}  // namespace lockstep
