#pragma once
// Optimizers, as values, over the flat parameters of all replicas. The update is sharded: an owner
// sums its part of the gradient over the ranks, updates it and writes the new weights to every
// replica (backend.optimizer_update).

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/core/options.h"
#include "lockstep/nn/parameter_store.h"

namespace lockstep {

/// torch.optim.SGD with dampening 0: g += decay*w; v = momentum*v + g; w -= lr*v.
struct Sgd {
  static constexpr const char* kName = "sgd";
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
};

/// torch.optim.AdamW (Loshchilov and Hutter 2019). Updates are counted by the steps of the run:
/// what a step does depends on its number, too.
struct AdamW {
  static constexpr const char* kName = "adamw";
  float lr = 1e-3F;
  double beta1 = 0.9, beta2 = 0.999;
  float eps = 1e-8F;
  float weight_decay = 1e-2F;
  float norm_weight_decay = 0.0F;  // for gamma and beta

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("lr", lr, "", {.in = limits::kNotNegative});
    v("beta1", beta1, "adamw", {.in = limits::kBelowOne, .akin = "momentum"});
    v("beta2", beta2, "adamw", {.in = limits::kBelowOne});
    v("eps", eps, "adamw", {.in = {.lo = 1e-38, .hi = 1}});  // a float has it with all its digits
    v("weight_decay", weight_decay, "", {.in = limits::kNotNegative});
    v("norm_weight_decay", norm_weight_decay, "of gamma and beta", {.in = limits::kNotNegative});
  }
};

using Optimizer = std::variant<Sgd, AdamW>;

/// Parameters whose learning rate or weight decay is not the optimizer's (PyTorch's param_groups).
struct ParameterGroup {
  /// Of names: "head" fits "head" and "head.weight", but not "header.weight"; "" fits all.
  std::string prefix;
  float lr_mult = 1;                       // times the learning rate
  std::optional<float> weight_decay = {};  // of all its parameters, gamma and beta too
};

/// What a schedule starts from.
float base_learning_rate(const Optimizer& optimizer);

/// "sgd", "adamw".
std::string optimizer_name(const Optimizer& optimizer);

/// What an optimizer keeps per parameter element, by PyTorch's names: {"momentum_buffer"};
/// {"exp_avg", "exp_avg_sq"}.
std::vector<std::string> optimizer_slots(const Optimizer& optimizer);

/// What an optimizer has come to, on the host: every slot for all parameters in their flat order.
struct OptimizerState {
  std::string optimizer;  // its name
  std::map<std::string, std::vector<float>> slots;
  friend bool operator==(const OptimizerState&, const OptimizerState&) = default;
};

/// Throws ConfigError when a number of the optimizer or of a group is out of its range, or when two
/// groups have one prefix.
void check_optimizer(const Optimizer& optimizer, std::span<const ParameterGroup> groups);

/// Neighbouring parameters that are updated alike joined; covers every parameter, in order. Of
/// several groups the one with the longest prefix that fits a parameter has it. Throws ConfigError
/// for a prefix that fits none.
std::vector<ParameterRange> parameter_ranges(const ParameterStore& store,
                                             const Optimizer& optimizer,
                                             std::span<const ParameterGroup> groups = {});

/// Where the elements that `owner` of `owners` updates begin; with owner = owners: their end.
std::int64_t owned_begin(std::int64_t elements, int owner, int owners);

/// The part of `ranges` that `owner` of `owners` updates: [elements] cut into equal pieces at
/// multiples of kNormBlock.
std::vector<ParameterRange> owned_ranges(const std::vector<ParameterRange>& ranges,
                                         std::int64_t elements, int owner, int owners);

}  // namespace lockstep
