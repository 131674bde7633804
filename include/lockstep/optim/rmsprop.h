#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "lockstep/core/device.h"
#include "lockstep/core/options.h"

namespace lockstep {

/// torch.optim.RMSprop, not centered (Tieleman and Hinton 2012): g += decay*w; s = alpha*s +
/// (1-alpha)*g*g; v = momentum*v + g / (sqrt(s) + eps); w -= lr*v. It keeps v without a momentum,
/// too.
struct RMSprop {
  static constexpr const char* kName = "rmsprop";
  static constexpr const char* kTitle = "RMSprop";
  static constexpr const char* kSlots[] = {"momentum_buffer", "square_avg"};  // v, s

  float lr = 0.01F;
  double alpha = 0.99;
  float eps = 1e-8F;
  float momentum = 0.0F;
  float weight_decay = 0.0F;
  float norm_weight_decay = 0.0F;               // for gamma and beta
  std::optional<float> bias_weight_decay = {};  // for other biases; none: weight_decay

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("lr", lr, "", {.in = limits::kNotNegative});
    v("alpha", alpha, "rmsprop: of the mean of the squares", {.in = limits::kBelowOne});
    v("eps", eps, "adam, adamw, rmsprop", {.in = {.lo = 1e-38, .hi = 1}});
    v("momentum", momentum, "sgd, rmsprop", {.in = limits::kBelowOne});
    v("weight_decay", weight_decay, "", {.in = limits::kNotNegative});
    v("norm_weight_decay", norm_weight_decay, "of gamma and beta", {.in = limits::kNotNegative});
    v("bias_weight_decay", bias_weight_decay, "of other biases; left out: weight_decay",
      {.in = limits::kNotNegative});
  }

  class Element {
   public:
    static constexpr int kSlots = 2;
    static constexpr bool kMadeInDouble = false;

    Element() = default;
    LOCKSTEP_HOST_DEVICE Element(const RMSprop& rmsprop, std::int64_t)
        : square_share_(static_cast<float>(1 - rmsprop.alpha)),
          square_decay_(static_cast<float>(rmsprop.alpha)),
          eps_(rmsprop.eps),
          momentum_(rmsprop.momentum) {}
    LOCKSTEP_HOST_DEVICE float operator()(float weight, float grad, float (&state)[kSlots],
                                          float lr, float weight_decay) const {
      const float decayed = std::fma(weight_decay, weight, grad);
      state[1] = std::fma(square_share_ * decayed, decayed, square_decay_ * state[1]);
      state[0] = std::fma(momentum_, state[0], decayed / (std::sqrt(state[1]) + eps_));
      return std::fma(-lr, state[0], weight);
    }

   private:
    float square_share_ = 0, square_decay_ = 0;  // of the new square: 1 - alpha; alpha
    float eps_ = 0;
    float momentum_ = 0;
  };
};

}  // namespace lockstep
