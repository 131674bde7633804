#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "lockstep/core/device.h"
#include "lockstep/core/options.h"

namespace lockstep {

/// torch.optim.SGD with dampening 0: g += decay*w; v = momentum*v + g; w -= lr*v, with `nesterov`
/// w -= lr*(g + momentum*v). PyTorch's defaults are lr 0.001, no momentum and no weight decay.
struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr const char* kTitle = "SGD";
  static constexpr const char* kSlots[] = {"momentum_buffer"};  // v

  float lr = 0.01F;
  float momentum = 0.9F;
  bool nesterov = false;
  float weight_decay = 1e-4F;
  float norm_weight_decay = 0.0F;               // for gamma and beta
  std::optional<float> bias_weight_decay = {};  // for other biases; none: weight_decay

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("lr", lr, "", {.in = limits::kNotNegative});
    v("momentum", momentum, "sgd, rmsprop", {.in = limits::kBelowOne});
    v("nesterov", nesterov, "sgd: the step looks ahead by the momentum", {.written = nesterov});
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
    LOCKSTEP_HOST_DEVICE Element(const Sgd& sgd, std::int64_t)
        : momentum_(sgd.momentum), nesterov_(sgd.nesterov) {}
    LOCKSTEP_HOST_DEVICE float operator()(float weight, float grad, float (&state)[kSlots],
                                          float lr, float weight_decay) const {
      const float decayed = std::fma(weight_decay, weight, grad);
      state[0] = std::fma(momentum_, state[0], decayed);
      const float step = nesterov_ ? std::fma(momentum_, state[0], decayed) : state[0];
      return std::fma(-lr, step, weight);
    }

   private:
    float momentum_ = 0;
    bool nesterov_ = false;
  };
};

}  // namespace lockstep
