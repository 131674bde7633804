#include "backend/element_functions.h"

#include <array>

#include "lockstep/core/options.h"

namespace lockstep {

bool Activation::from_output() const {
  return with_activation(*this, [](const auto& f) { return f.kFromOutput; });
}

constexpr std::array<Named<ActivationKind>, 10> names_of(ActivationKind) {
  return {{{"relu", ActivationKind::kRelu},
           {"relu6", ActivationKind::kRelu6},
           {"leaky_relu", ActivationKind::kLeakyRelu},
           {"sigmoid", ActivationKind::kSigmoid},
           {"hardsigmoid", ActivationKind::kHardsigmoid},
           {"tanh", ActivationKind::kTanh},
           {"silu", ActivationKind::kSilu},
           {"hardswish", ActivationKind::kHardswish},
           {"gelu", ActivationKind::kGelu},
           {"gelu_tanh", ActivationKind::kGeluTanh}}};
}

const char* to_string(ActivationKind kind) { return to_string<ActivationKind>(kind); }

constexpr std::array<Named<BinaryKind>, 4> names_of(BinaryKind) {
  return {{{"add", BinaryKind::kAdd},
           {"sub", BinaryKind::kSubtract},
           {"mul", BinaryKind::kMultiply},
           {"prelu", BinaryKind::kPRelu}}};
}

const char* to_string(BinaryKind kind) { return to_string<BinaryKind>(kind); }

}  // namespace lockstep
