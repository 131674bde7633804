#include "lockstep/nn/loss.h"

namespace lockstep {
namespace {

class MeanSquaredErrorNode final : public LossNode {
 public:
  MeanSquaredErrorNode(const LossSite& site, const MeanSquaredErrorLoss& loss)
      : LossNode(site, loss.weight, {}) {}

  void compute(const LossPass& pass) override {
    MeanSquaredError arguments;
    arguments.output = pass.output;
    arguments.target = pass.target;
    arguments.normalizer = pass.normalizer;
    arguments.sample_weights = pass.sample_weights;
    arguments.grad_output = pass.grad_output;
    arguments.loss = pass.loss;
    arguments.image_losses = pass.image_losses;
    arguments.grad_scale = pass.grad_scale;
    backend().losses().mean_squared_error(arguments);
  }
};

}  // namespace

std::unique_ptr<LossNode> MeanSquaredErrorLoss::make_node(const LossSite& site) const {
  return std::make_unique<MeanSquaredErrorNode>(site, *this);
}

}  // namespace lockstep
