// Losses whose elements each have a loss by themselves: those of the library, and any formula.

#include "backend/formulas.h"
#include "lockstep/core/check.h"
#include "lockstep/nn/loss.h"
#include "nn/losses/device_values.h"
#include "nn/losses/host_element_losses.h"

namespace lockstep {
namespace {

class ElementNode : public LossNode {
 public:
  ElementNode(const LossSite& site, float weight, std::unique_ptr<const ElementFormula> formula)
      : LossNode(site, weight, {}), formula_(std::move(formula)) {
    if (!formula_ || backend().losses().computes(*formula_)) return;
    const Shape& largest = site.network.output(output_index()).shape;
    on_host_ = std::make_unique<HostElementLosses>(backend(), largest);
  }

  bool needs_host() const override { return on_host_ != nullptr; }

  void compute(const LossPass& pass) override {
    ElementLosses arguments;
    arguments.formula = formula_.get();
    arguments.output = pass.output;
    arguments.target = pass.target;
    arguments.normalizer = pass.normalizer;
    arguments.sample_weights = pass.sample_weights;
    arguments.grad_output = pass.grad_output;
    arguments.loss = pass.loss;
    arguments.image_losses = pass.image_losses;
    arguments.grad_scale = pass.grad_scale;
    if (on_host_) return on_host_->compute(arguments);
    backend().losses().element_losses(arguments);
  }

 protected:
  /// One of the library's, which every device has a kernel for.
  void set_formula(std::unique_ptr<const ElementFormula> formula) { formula_ = std::move(formula); }

 private:
  std::unique_ptr<const ElementFormula> formula_;
  std::unique_ptr<HostElementLosses> on_host_;  // null where the device has a kernel
};

class BCEWithLogitsNode final : public ElementNode {
 public:
  BCEWithLogitsNode(const LossSite& site, const BCEWithLogitsLoss& loss)
      : ElementNode(site, loss.weight, nullptr),
        pos_weight_(upload_per_channel(backend(), loss.pos_weight, classes(), "loss.pos_weight")) {
    set_formula(std::make_unique<FormulaOf<BinaryCrossEntropy>>(
        BinaryCrossEntropy{floats_of(pos_weight_)}));
  }

 private:
  const Storage pos_weight_;  // [channels]; empty: all 1
};

}  // namespace

std::unique_ptr<LossNode> make_element_node(const LossSite& site, float weight,
                                            std::unique_ptr<const ElementFormula> formula) {
  LOCKSTEP_CHECK(formula != nullptr, "the formula of the loss at output '", site.output,
                 "' is null");
  return std::make_unique<ElementNode>(site, weight, std::move(formula));
}

std::unique_ptr<LossNode> MeanSquaredErrorLoss::make_node(const LossSite& site) const {
  return make_element_node(site, weight, std::make_unique<FormulaOf<SquaredError>>(SquaredError{}));
}

std::unique_ptr<LossNode> L1Loss::make_node(const LossSite& site) const {
  return make_element_node(site, weight,
                           std::make_unique<FormulaOf<AbsoluteError>>(AbsoluteError{}));
}

std::unique_ptr<LossNode> HuberLoss::make_node(const LossSite& site) const {
  return make_element_node(site, weight,
                           std::make_unique<FormulaOf<HuberError>>(HuberError{delta}));
}

std::unique_ptr<LossNode> BCEWithLogitsLoss::make_node(const LossSite& site) const {
  return std::make_unique<BCEWithLogitsNode>(site, *this);
}

}  // namespace lockstep
