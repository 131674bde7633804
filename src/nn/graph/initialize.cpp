#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/rng.h"
#include "lockstep/nn/model.h"

namespace lockstep {
namespace {

std::vector<float> initial_values(const Parameter& parameter, std::uint64_t seed) {
  const auto elements = static_cast<std::size_t>(parameter.elements);
  if (parameter.initial) return std::vector<float>(elements, *parameter.initial);
  std::vector<float> values(elements, 0.0F);
  if (parameter.kind == ParameterKind::kNorm && parameter.name.ends_with(".weight")) {
    values.assign(values.size(), 1.0F);
  }
  if (parameter.kind == ParameterKind::kWeight) {
    const auto std = static_cast<float>(std::sqrt(2.0 / static_cast<double>(parameter.fan_in)));
    Rng rng(seed, RngPurpose::kInitialWeights,
            XXH64(parameter.name.data(), parameter.name.size(), 0));
    for (float& value : values) value = std * rng.normal();
  }
  return values;
}

}  // namespace

void initialize_parameters(ParameterStore& store, Backend& backend, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(store.elements()), 0.0F);
  for (const auto& parameter : store.parameters()) {
    const std::vector<float> initial = initial_values(*parameter, seed);
    std::copy(initial.begin(), initial.end(), values.begin() + parameter->offset);
  }
  backend.upload(Tensor(store.values(), Shape{1, store.elements()}), values.data());
  backend.synchronize();  // the host copy ends here
}

}  // namespace lockstep
