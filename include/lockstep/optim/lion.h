#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "lockstep/core/device.h"
#include "lockstep/core/options.h"

namespace lockstep {

/// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"): c = beta1*m +
/// (1-beta1)*g; w -= lr * (sign(c) + decay*w); m = beta2*m + (1-beta2)*g. Its updates are as large
/// as lr whatever the gradient: lr is a tenth to a third of AdamW's.
struct Lion {
  static constexpr const char* kName = "lion";
  static constexpr const char* kTitle = "Lion";
  static constexpr const char* kSlots[] = {"exp_avg"};  // m

  float lr = 1e-4F;
  double beta1 = 0.9, beta2 = 0.99;
  float weight_decay = 0.0F;
  float norm_weight_decay = 0.0F;               // for gamma and beta
  std::optional<float> bias_weight_decay = {};  // for other biases; none: weight_decay

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("lr", lr, "", {.in = limits::kNotNegative});
    v("beta1", beta1, "adam, adamw, lion", {.in = limits::kBelowOne, .akin = "momentum"});
    v("beta2", beta2, "adam, adamw, lion", {.in = limits::kBelowOne});
    v("weight_decay", weight_decay, "", {.in = limits::kNotNegative});
    v("norm_weight_decay", norm_weight_decay, "of gamma and beta", {.in = limits::kNotNegative});
    v("bias_weight_decay", bias_weight_decay, "of other biases; left out: weight_decay",
      {.in = limits::kNotNegative});
  }

  class Element {
   public:
    static constexpr int kSlots = 1;
    static constexpr bool kMadeInDouble = false;

    Element() = default;
    LOCKSTEP_HOST_DEVICE Element(const Lion& lion, std::int64_t)
        : update_share_(static_cast<float>(1 - lion.beta1)),
          mean_share_(static_cast<float>(1 - lion.beta2)),
          update_decay_(static_cast<float>(lion.beta1)),
          mean_decay_(static_cast<float>(lion.beta2)) {}
    LOCKSTEP_HOST_DEVICE float operator()(float weight, float grad, float (&state)[kSlots],
                                          float lr, float weight_decay) const {
      const float update = std::fma(update_share_, grad, update_decay_ * state[0]);
      state[0] = std::fma(mean_share_, grad, mean_decay_ * state[0]);
      const float sign = update > 0 ? 1.0F : update < 0 ? -1.0F : update;  // NaN passes
      return std::fma(-lr, sign, std::fma(-lr * weight_decay, weight, weight));
    }

   private:
    float update_share_ = 0, mean_share_ = 0;  // of the gradient: 1 - beta1, 1 - beta2
    float update_decay_ = 0, mean_decay_ = 0;  // beta1, beta2
  };
};

}  // namespace lockstep
