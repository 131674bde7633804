#pragma once

#include <cmath>
#include <cstdint>

#include "lockstep/core/device.h"
#include "lockstep/core/options.h"

namespace lockstep {

/// torch.optim.SGD with dampening 0: g += decay*w; v = momentum*v + g; w -= lr*v.
struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr const char* kTitle = "SGD";
  static constexpr const char* kSlots[] = {"momentum_buffer"};  // v

  float lr = 0.01F;
  float momentum = 0.9F;
  float weight_decay = 1e-4F;
  float norm_weight_decay = 0.0F;  // for gamma and beta

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("lr", lr, "", {.in = limits::kNotNegative});
    v("momentum", momentum, "sgd", {.in = limits::kBelowOne});
    v("weight_decay", weight_decay, "", {.in = limits::kNotNegative});
    v("norm_weight_decay", norm_weight_decay, "of gamma and beta", {.in = limits::kNotNegative});
  }

  class Element {
   public:
    static constexpr int kSlots = 1;
    static constexpr bool kMadeInDouble = false;

    Element() = default;
    LOCKSTEP_HOST_DEVICE Element(const Sgd& sgd, std::int64_t) : momentum_(sgd.momentum) {}
    LOCKSTEP_HOST_DEVICE float operator()(float weight, float grad, float (&state)[kSlots],
                                          float lr, float weight_decay) const {
      state[0] = std::fma(momentum_, state[0], std::fma(weight_decay, weight, grad));
      return std::fma(-lr, state[0], weight);
    }

   private:
    float momentum_ = 0;
  };
};

}  // namespace lockstep
