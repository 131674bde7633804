#pragma once
// Optimizers, as values. Each is a struct in a header of its own, listed below:
//   kName, kTitle    what configurations and messages call it
//   kSlots           its state: what it keeps per parameter element, by PyTorch's names
//   visit_options    its numbers, with key, range and sentence (core/options.h)
//   Element          what an update does to an element, on the CPU and in kernels: made once per
//                    update of (optimizer, number of the update, from 1); its operator() returns
//                    the new weight and changes the state. Its kSlots is how many numbers that
//                    has; kMadeInDouble says that to make one takes double arithmetic, of which
//                    many GPUs do little at a time, so that one thread of a block does it for all.

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/optim/adam.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/lion.h"
#include "lockstep/optim/rmsprop.h"
#include "lockstep/optim/sgd.h"

namespace lockstep {

/// All optimizers. A configuration without a type has the first.
using Optimizer = std::variant<Sgd, AdamW, Lion, Adam, RMSprop>;

template <typename... Types>
constexpr std::size_t most_slots(const std::variant<Types...>*) {
  static_assert((... && (std::size(Types::kSlots) == Types::Element::kSlots)));
  return std::max({std::size(Types::kSlots)...});
}
inline constexpr std::size_t kMaxSlots = most_slots(static_cast<const Optimizer*>(nullptr));

/// Parameters whose learning rate or weight decay is not the optimizer's (PyTorch's param_groups).
struct ParameterGroup {
  /// Of names: "head" fits "head" and "head.weight", but not "header.weight"; "" fits all.
  std::string prefix;
  float lr_mult = 1;                       // times the learning rate
  std::optional<float> weight_decay = {};  // of all its parameters, gamma and beta too
  /// Whether they stay as they are, as with requires_grad = False: they have no update and no
  /// optimizer state, and the gradient's norm is that of the others. (Running statistics go on.)
  bool frozen = false;
};

/// Bounds of the gradient of the global loss, between the sum over all devices and the update; its
/// norm is told as it was before. 0: no bound.
struct GradientClipping {
  /// torch.nn.utils.clip_grad_norm_ over all parameters: g *= min(1, norm / (|g| + 1e-6)), where
  /// |g| is Euclidean.
  float norm = 0;
  /// torch.nn.utils.clip_grad_value_, after that: each element is brought to [-value, value].
  float value = 0;
};

/// What a schedule starts from.
float base_learning_rate(const Optimizer& optimizer);

/// "sgd", "adamw".
std::string optimizer_name(const Optimizer& optimizer);

/// {"momentum_buffer"}; {"exp_avg", "exp_avg_sq"}.
std::vector<std::string> optimizer_slots(const Optimizer& optimizer);

/// The state of an optimizer, on the host: by its names, of all parameters in their flat order.
struct OptimizerState {
  std::string optimizer;  // its name
  std::map<std::string, std::vector<float>> slots;
  friend bool operator==(const OptimizerState&, const OptimizerState&) = default;
};

/// Throws ConfigError when a number of the optimizer or of a group is out of its range, or when two
/// groups have one prefix.
void check_optimizer(const Optimizer& optimizer, std::span<const ParameterGroup> groups);
/// Throws ConfigError for a bound that is negative or not finite.
void check_clipping(const GradientClipping& clipping);

}  // namespace lockstep
