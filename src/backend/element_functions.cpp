#include "backend/element_functions.h"

namespace lockstep {

bool Activation::from_output() const {
  return with_activation(*this, [](const auto& f) { return f.kFromOutput; });
}

const char* to_string(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kRelu:
      return "relu";
    case ActivationKind::kRelu6:
      return "relu6";
    case ActivationKind::kLeakyRelu:
      return "leaky_relu";
    case ActivationKind::kSigmoid:
      return "sigmoid";
    case ActivationKind::kHardsigmoid:
      return "hardsigmoid";
    case ActivationKind::kTanh:
      return "tanh";
    case ActivationKind::kSilu:
      return "silu";
    case ActivationKind::kHardswish:
      return "hardswish";
    case ActivationKind::kGelu:
      return "gelu";
    case ActivationKind::kGeluTanh:
      return "gelu_tanh";
  }
  return "?";
}

const char* to_string(BinaryKind kind) {
  switch (kind) {
    case BinaryKind::kAdd:
      return "add";
    case BinaryKind::kSubtract:
      return "sub";
    case BinaryKind::kMultiply:
      return "mul";
    case BinaryKind::kPRelu:
      return "prelu";
  }
  return "?";
}

}  // namespace lockstep
