// Cross-entropy, and focal loss, which is cross-entropy times a factor of its own.

#include <utility>

#include "lockstep/nn/loss.h"
#include "nn/losses/device_values.h"
#include "nn/losses/label_arguments.h"

namespace lockstep {
namespace {

/// What the two losses differ in.
struct CrossEntropyForm {
  const char* key = "";             // of the weights, in messages
  std::vector<float> class_weight;  // [class]; empty: all 1
  bool weighted_mean = false;       // divided by the labels' weights, not by their number
  float label_smoothing = 0, gamma = 0;
};

class CrossEntropyNode final : public LossNode {
 public:
  CrossEntropyNode(const LossSite& site, float weight, int ignore_index, CrossEntropyForm form)
      : LossNode(site, weight, {true, ignore_index}),
        form_(std::move(form)),
        class_weight_(upload_per_channel(backend(), form_.class_weight, classes(), form_.key)) {}

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
    arguments.label_smoothing = form_.label_smoothing;
    arguments.gamma = form_.gamma;
    return arguments;
  }
  double mean_over(const LossCounts& counts) const override {
    return form_.weighted_mean ? weighted_labels(counts, form_.class_weight) : terms(counts);
  }

  const CrossEntropyForm form_;
  const Storage class_weight_;  // in device memory
};

}  // namespace

std::unique_ptr<LossNode> CrossEntropyLoss::make_node(const LossSite& site) const {
  CrossEntropyForm form{.key = "loss.class_weight",
                        .class_weight = class_weight,
                        .weighted_mean = true,
                        .label_smoothing = label_smoothing};
  return std::make_unique<CrossEntropyNode>(site, weight, ignore_index, std::move(form));
}

std::unique_ptr<LossNode> FocalLoss::make_node(const LossSite& site) const {
  CrossEntropyForm form{.key = "loss.alpha", .class_weight = alpha, .gamma = gamma};
  return std::make_unique<CrossEntropyNode>(site, weight, ignore_index, std::move(form));
}

}  // namespace lockstep
