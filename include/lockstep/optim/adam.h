#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "lockstep/core/device.h"
#include "lockstep/core/options.h"
#include "lockstep/optim/adamw.h"

namespace lockstep {

/// torch.optim.Adam (Kingma and Ba 2015): g += decay*w, then AdamW's update without a decay of its
/// own: the weight decay is part of the gradient, and scaled with it.
struct Adam {
  static constexpr const char* kName = "adam";
  static constexpr const char* kTitle = "Adam";
  static constexpr const char* kSlots[] = {"exp_avg", "exp_avg_sq"};

  float lr = 1e-3F;
  double beta1 = 0.9, beta2 = 0.999;
  float eps = 1e-8F;
  float weight_decay = 0.0F;
  float norm_weight_decay = 0.0F;               // for gamma and beta
  std::optional<float> bias_weight_decay = {};  // for other biases; none: weight_decay

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("lr", lr, "", {.in = limits::kNotNegative});
    v("beta1", beta1, "adam, adamw, lion", {.in = limits::kBelowOne, .akin = "momentum"});
    v("beta2", beta2, "adam, adamw, lion", {.in = limits::kBelowOne});
    v("eps", eps, "adam, adamw, rmsprop", {.in = {.lo = 1e-38, .hi = 1}});
    v("weight_decay", weight_decay, "", {.in = limits::kNotNegative});
    v("norm_weight_decay", norm_weight_decay, "of gamma and beta", {.in = limits::kNotNegative});
    v("bias_weight_decay", bias_weight_decay, "of other biases; left out: weight_decay",
      {.in = limits::kNotNegative});
  }

  class Element {
   public:
    static constexpr int kSlots = AdamW::Element::kSlots;
    static constexpr bool kMadeInDouble = AdamW::Element::kMadeInDouble;

    Element() = default;
    LOCKSTEP_HOST_DEVICE Element(const Adam& adam, std::int64_t update) : update_(adam, update) {}
    LOCKSTEP_HOST_DEVICE float operator()(float weight, float grad, float (&state)[kSlots],
                                          float lr, float weight_decay) const {
      return update_(weight, std::fma(weight_decay, weight, grad), state, lr, 0.0F);
    }

   private:
    AdamW::Element update_;
  };
};

}  // namespace lockstep
