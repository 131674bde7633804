// Losses whose elements each have a loss by themselves: those of the library, and any formula.

#include "backend/formulas.h"
#include "lockstep/core/check.h"
#include "lockstep/nn/loss.h"
#include "nn/losses/device_values.h"

namespace lockstep {
namespace {

class ElementNode : public LossNode {
 public:
  ElementNode(const LossSite& site, float weight, std::unique_ptr<const ElementFormula> formula)
      : LossNode(site, weight, {}) {
    if (formula) set_formula(std::move(formula));
  }

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
    backend().losses().element_losses(arguments);
  }

 protected:
  void set_formula(std::unique_ptr<const ElementFormula> formula) {
    formula_ = std::move(formula);
    if (backend().losses().computes(*formula_)) return;
    throw ConfigError(concat("the loss at output '", output(), "' has a formula that ",
                             to_string(backend().device()),
                             " has no kernel for; train it on CPU devices, or derive a LossNode"));
  }

 private:
  std::unique_ptr<const ElementFormula> formula_;
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
