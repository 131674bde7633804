#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "lockstep/core/check.h"
#include "lockstep/nn/model.h"

namespace lockstep {
namespace {

void check_fan(std::int64_t fan) {
  if (fan > 0) return;
  throw ConfigError(concat("initial values need a fan of at least 1, got ", fan));
}

}  // namespace

Initial Initial::constant(float value) {
  if (!std::isfinite(value)) {
    throw ConfigError(concat("an initial value must be finite, is ", value));
  }
  Initial initial;
  initial.constant_ = value;
  return initial;
}

Initial Initial::normal(float std) {
  if (!(std >= 0) || !std::isfinite(std)) {
    throw ConfigError(concat("a standard deviation must be finite and not negative, is ", std));
  }
  Initial initial;
  initial.std_ = std;
  return initial;
}

Initial Initial::kaiming_normal(std::int64_t fan_in) {
  check_fan(fan_in);
  return normal(static_cast<float>(std::sqrt(2.0 / static_cast<double>(fan_in))));
}

Initial Initial::xavier_normal(std::int64_t fan_in, std::int64_t fan_out) {
  check_fan(fan_in);
  check_fan(fan_out);
  return normal(static_cast<float>(std::sqrt(2.0 / static_cast<double>(fan_in + fan_out))));
}

Initial Initial::of(std::function<float(std::int64_t index)> element) {
  if (element == nullptr) throw ConfigError("the function of the initial values is null");
  Initial initial;
  initial.element_ = std::move(element);
  return initial;
}

std::vector<float> Initial::values(const std::string& name, std::int64_t elements,
                                   std::uint64_t seed) const {
  std::vector<float> values(static_cast<std::size_t>(elements), constant_);
  if (std_ > 0) {
    Rng rng(seed, RngPurpose::kInitialWeights, XXH64(name.data(), name.size(), 0));
    for (float& value : values) value = std_ * rng.normal();
  }
  if (element_ == nullptr) return values;
  for (std::int64_t i = 0; i < elements; ++i) {
    float& value = values[static_cast<std::size_t>(i)];
    value = element_(i);
    LOCKSTEP_CHECK(std::isfinite(value), "the initial value of ", name, " at element ", i, " is ",
                   value);
  }
  return values;
}

// One after another: a copy of all of them on the host would be the most memory that a training
// ever takes, for each device.
void initialize_parameters(ParameterStore& store, Backend& backend, std::uint64_t seed) {
  for (const auto& parameter : store.parameters()) {
    const std::vector<float> initial =
        parameter->initial.values(parameter->name, parameter->elements, seed);
    backend.upload(Tensor(parameter->value, Shape{1, parameter->elements}), initial.data());
    backend.synchronize();  // the host copy ends here
  }
}

}  // namespace lockstep
