#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "lockstep/core/device.h"
#include "lockstep/core/options.h"

namespace lockstep {

/// torch.optim.AdamW (Loshchilov and Hutter 2019): w -= lr*decay*w; m = beta1*m + (1-beta1)*g;
/// v = beta2*v + (1-beta2)*g*g; w -= lr * (m/(1-beta1^t)) / (sqrt(v/(1-beta2^t)) + eps), where t
/// counts the updates by the steps of the run: what a step does depends on its number, too.
struct AdamW {
  static constexpr const char* kName = "adamw";
  static constexpr const char* kTitle = "AdamW";
  static constexpr const char* kSlots[] = {"exp_avg", "exp_avg_sq"};  // m, v

  float lr = 1e-3F;
  double beta1 = 0.9, beta2 = 0.999;
  float eps = 1e-8F;
  float weight_decay = 1e-2F;
  float norm_weight_decay = 0.0F;               // for gamma and beta
  std::optional<float> bias_weight_decay = {};  // for other biases; none: weight_decay

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("lr", lr, "", {.in = limits::kNotNegative});
    v("beta1", beta1, "adam, adamw, lion", {.in = limits::kBelowOne, .akin = "momentum"});
    v("beta2", beta2, "adam, adamw, lion", {.in = limits::kBelowOne});
    // Without it what never had a gradient would be divided by zero; a float has 1e-38 with all its
    // digits.
    v("eps", eps, "adam, adamw, rmsprop", {.in = {.lo = 1e-38, .hi = 1}});
    v("weight_decay", weight_decay, "", {.in = limits::kNotNegative});
    v("norm_weight_decay", norm_weight_decay, "of gamma and beta", {.in = limits::kNotNegative});
    v("bias_weight_decay", bias_weight_decay, "of other biases; left out: weight_decay",
      {.in = limits::kNotNegative});
  }

  /// What is the same for all elements is computed once, in double. No sum is left to the compiler.
  class Element {
   public:
    static constexpr int kSlots = 2;
    static constexpr bool kMadeInDouble = true;

    Element() = default;
    /// `any`: whatever has these betas and eps.
    template <typename Any>
    LOCKSTEP_HOST_DEVICE Element(const Any& any, std::int64_t update)
        : mean_share_(static_cast<float>(1 - any.beta1)),
          square_share_(static_cast<float>(1 - any.beta2)),
          mean_decay_(static_cast<float>(any.beta1)),
          square_decay_(static_cast<float>(any.beta2)),
          mean_correction_(static_cast<float>(1 / bias_correction(any.beta1, update))),
          root_correction_(static_cast<float>(1 / std::sqrt(bias_correction(any.beta2, update)))),
          eps_(any.eps) {}
    LOCKSTEP_HOST_DEVICE float operator()(float weight, float grad, float (&state)[kSlots],
                                          float lr, float weight_decay) const {
      const float decayed = std::fma(-lr * weight_decay, weight, weight);
      state[0] = std::fma(mean_share_, grad, mean_decay_ * state[0]);
      state[1] = std::fma(square_share_ * grad, grad, square_decay_ * state[1]);
      const float denominator = std::fma(std::sqrt(state[1]), root_correction_, eps_);
      return std::fma(-lr * mean_correction_, state[0] / denominator, decayed);
    }

   private:
    /// base^exponent by repeated multiplication, which all devices round alike. REQUIRES: exponent
    /// >= 0.
    LOCKSTEP_HOST_DEVICE static double power(double base, std::int64_t exponent) {
      double result = 1;
      for (; exponent > 0; exponent /= 2) {
        if (exponent % 2 == 1) result *= base;
        base *= base;
      }
      return result;
    }
    /// 1 - beta^t. The last product is fused by hand. REQUIRES: t >= 1.
    LOCKSTEP_HOST_DEVICE static double bias_correction(double beta, std::int64_t t) {
      return std::fma(-power(beta, t - 1), beta, 1.0);
    }

    float mean_share_ = 0, square_share_ = 0;  // of the new value: 1 - beta1, 1 - beta2
    float mean_decay_ = 0, square_decay_ = 0;  // beta1, beta2
    float mean_correction_ = 1;                // 1 / (1 - beta1^t)
    float root_correction_ = 1;                // 1 / sqrt(1 - beta2^t)
    float eps_ = 0;
  };
};

}  // namespace lockstep
