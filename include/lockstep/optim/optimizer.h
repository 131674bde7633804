#pragma once
// Optimizers, as values, over the flat parameters of all replicas. The update is sharded: an owner
// sums its part of the gradient over the ranks, updates it and writes the new weights to every
// replica (backend.optimizer_update).

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/nn/parameter_store.h"

namespace lockstep {

/// torch.optim.SGD with dampening 0: g += decay*w; v = momentum*v + g; w -= lr*v.
struct Sgd {
  float lr = 0.01F;
  float momentum = 0.9F;
  float weight_decay = 1e-4F;
  float norm_weight_decay = 0.0F;  // for gamma and beta
};

using Optimizer = std::variant<Sgd>;

/// What a schedule starts from.
float base_learning_rate(const Optimizer& optimizer);

/// "sgd".
std::string optimizer_name(const Optimizer& optimizer);

/// What an optimizer keeps per parameter element, by PyTorch's names: {"momentum_buffer"}.
std::vector<std::string> optimizer_slots(const Optimizer& optimizer);

/// What an optimizer has come to, on the host: every slot for all parameters in their flat order.
struct OptimizerState {
  std::string optimizer;  // its name
  std::map<std::string, std::vector<float>> slots;
  friend bool operator==(const OptimizerState&, const OptimizerState&) = default;
};

/// Neighbouring parameters that are updated alike joined; covers every parameter, in order.
std::vector<ParameterRange> parameter_ranges(const ParameterStore& store,
                                             const Optimizer& optimizer);

/// The part of `ranges` that `owner` of `owners` updates: [elements] cut into equal pieces at
/// multiples of 16.
std::vector<ParameterRange> owned_ranges(const std::vector<ParameterRange>& ranges,
                                         std::int64_t elements, int owner, int owners);

}  // namespace lockstep
