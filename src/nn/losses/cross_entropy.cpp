#include "lockstep/nn/loss.h"
#include "nn/losses/device_values.h"
#include "nn/losses/label_arguments.h"

namespace lockstep {
namespace {

class CrossEntropyNode final : public LossNode {
 public:
  CrossEntropyNode(const LossSite& site, const CrossEntropyLoss& loss)
      : LossNode(site, loss.weight, {true, loss.ignore_index}),
        loss_(loss),
        class_weight_(
            upload_per_channel(backend(), loss.class_weight, classes(), "loss.class_weight")) {}

  void compute(const LossPass& pass) override {
    CrossEntropy arguments = arguments_of(pass);
    arguments.class_weight = floats_of(class_weight_);
    backend().losses().cross_entropy(arguments);
  }
  void evaluate(const LossPass& pass) override {
    backend().losses().cross_entropy(arguments_of(pass));
  }

 private:
  CrossEntropy arguments_of(const LossPass& pass) const {
    CrossEntropy arguments = label_arguments(pass, ignore_index());
    arguments.label_smoothing = loss_.label_smoothing;
    return arguments;
  }
  double mean_over(const LossCounts& counts) const override {
    return weighted_labels(counts, loss_.class_weight);
  }

  const CrossEntropyLoss loss_;
  const Storage class_weight_;  // [classes]; empty: all 1
};

}  // namespace

std::unique_ptr<LossNode> CrossEntropyLoss::make_node(const LossSite& site) const {
  return std::make_unique<CrossEntropyNode>(site, *this);
}

}  // namespace lockstep
