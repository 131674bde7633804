#include "lockstep/nn/loss.h"
#include "nn/losses/device_values.h"
#include "nn/losses/label_arguments.h"

namespace lockstep {
namespace {

class FocalNode final : public LossNode {
 public:
  FocalNode(const LossSite& site, const FocalLoss& loss)
      : LossNode(site, loss.weight, {true, loss.ignore_index}),
        gamma_(loss.gamma),
        alpha_(upload_per_channel(backend(), loss.alpha, classes(), "loss.alpha")) {}

  void compute(const LossPass& pass) override {
    CrossEntropy arguments = arguments_of(pass);
    arguments.class_weight = floats_of(alpha_);
    backend().losses().cross_entropy(arguments);
  }
  void evaluate(const LossPass& pass) override {
    backend().losses().cross_entropy(arguments_of(pass));
  }

 private:
  CrossEntropy arguments_of(const LossPass& pass) const {
    CrossEntropy arguments = label_arguments(pass, ignore_index());
    arguments.gamma = gamma_;
    return arguments;
  }

  const float gamma_;
  const Storage alpha_;  // [classes]; empty: all 1
};

}  // namespace

std::unique_ptr<LossNode> FocalLoss::make_node(const LossSite& site) const {
  return std::make_unique<FocalNode>(site, *this);
}

}  // namespace lockstep
