#pragma once
// Losses, as values: what a network's outputs are trained for.

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/core/options.h"

namespace lockstep {

/// Softmax cross-entropy of logits [N, ..., classes] against a class per position
/// (Batch::labels): the mean over the valid positions of the whole global batch, weighted by the
/// classes' weights (torch.nn.CrossEntropyLoss).
struct CrossEntropyLoss {
  static constexpr const char* kName = "cross_entropy";
  float weight = 1;                      // of this loss in the sum of all
  std::vector<float> class_weight = {};  // [classes]; empty: all 1
  int ignore_index = 255;                // a label that does not count

  template <typename Visitor>
  void visit_options(Visitor& v) {
    v("class_weight", class_weight, "one per class", {.in = limits::kNotNegative});
  }
};

/// The mean of the squared differences of an output of any shape from the batch's targets for it
/// (Batch::targets), over all elements of the whole global batch (torch.nn.MSELoss).
struct MeanSquaredErrorLoss {
  float weight = 1;  // of this loss in the sum of all
};

using Loss = std::variant<CrossEntropyLoss, MeanSquaredErrorLoss>;

/// Losses that a network may have.
inline constexpr std::size_t kMaxLosses = 4;

/// A loss at an output. An output has at most one.
struct NamedLoss {
  std::string output;
  Loss loss;
};

}  // namespace lockstep
