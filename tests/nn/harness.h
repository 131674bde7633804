#pragma once
// A network under test: built, filled with random parameters, run forward and backward, read back.

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lockstep/nn/model.h"
#include "nn/norms/batch_norm_layer.h"
#include "nn/reference_net.h"
#include "support/count_allocations.h"
#include "support/relative_error.h"

namespace lockstep::test {

using Floats = std::vector<float>;

inline Floats random_floats(std::int64_t count, std::uint32_t seed, float scale = 1.0F) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

inline Floats download(Backend& backend, const Tensor& tensor) {
  Floats values(static_cast<std::size_t>(tensor.shape.elements()));
  backend.download(values.data(), tensor);
  backend.synchronize();
  return values;
}

inline Floats download(Backend& backend, const float* data, std::int64_t count) {
  return download(backend, Tensor(const_cast<float*>(data), Shape{1, count}));
}

inline void upload(Backend& backend, const Tensor& tensor, const Floats& values) {
  REQUIRE(static_cast<std::int64_t>(values.size()) == tensor.shape.elements());
  backend.upload(tensor, values.data());
  backend.synchronize();
}

inline void upload(Backend& backend, float* data, const Floats& values) {
  upload(backend, Tensor(data, Shape{1, static_cast<std::int64_t>(values.size())}), values);
}

using Describe = std::function<Value*(NetworkBuilder&, Value* input)>;

/// What a step computes.
struct StepResult {
  Floats output, input_grad;
  std::map<std::string, Floats> grads;  // of parameters

  friend bool operator==(const StepResult&, const StepResult&) = default;
};

/// A model's network, nothing computed yet.
struct DeclaredModel {
  std::unique_ptr<Backend> backend = make_backend(Device{}, 1);
  ParameterStore store;
  std::unique_ptr<Network> network;

  DeclaredModel(const Model& model, const Shape& input, const PlanOptions& plan = {},
                const NormLayer& norm = {})
      : network(build_network(model, norm, input, plan, *backend, store)) {}

  /// Elements of all of them.
  std::int64_t parameters() const {
    std::int64_t sum = 0;
    for (const auto& parameter : store.parameters()) sum += parameter->elements;
    return sum;
  }
};

struct TestNetwork {
  std::unique_ptr<Backend> backend;
  ParameterStore store;
  std::unique_ptr<Network> network;

  TestNetwork(const Describe& describe, const Shape& input, const PlanOptions& plan = {true, true},
              const BatchNormOptions& options = {}, std::uint32_t seed = 1)
      : backend(make_backend(Device{}, 1)) {
    network = build(describe, input, plan, options);
    randomize(seed);
  }

  /// Another network on the same parameters.
  std::unique_ptr<Network> build(const Describe& describe, const Shape& input,
                                 const PlanOptions& plan, const BatchNormOptions& options = {}) {
    NetworkBuilder net(*backend, store, options);
    Value* x = net.input(input);
    return net.build(describe(net, x), plan);
  }

  /// Random weights, scales between 0.5 and 1.5, random running statistics.
  void randomize(std::uint32_t seed) {
    for (const auto& parameter : store.parameters()) {
      Floats values = random_floats(parameter->elements, seed++, 0.4F);
      if (parameter->name.ends_with(".weight") && parameter->kind == ParameterKind::kNorm) {
        for (float& value : values) value = 1.0F + 0.5F * std::tanh(value);
      }
      upload(*backend, parameter->value, values);
    }
    for (const auto& state : store.batch_norms()) {
      upload(*backend, state->running_mean, random_floats(state->channels, seed++, 0.3F));
      Floats var = random_floats(state->channels, seed++, 0.4F);
      for (float& value : var) value = std::exp(value);
      upload(*backend, state->running_var, var);
    }
  }

  StepResult step(const Floats& input, std::uint32_t grad_seed, const StepContext& context = {}) {
    return step(*network, input, grad_seed, context);
  }

  StepResult step(Network& net, const Floats& input, std::uint32_t grad_seed,
                  const StepContext& context = {}) {
    StepResult result;
    upload(*backend, net.input(), input);
    net.zero_grad();
    net.forward(context);
    result.output = download(*backend, net.output());
    if (!net.output_grad()) return result;
    upload(*backend, net.output_grad(), random_floats(net.output().shape.elements(), grad_seed));
    net.backward(context);
    if (net.input_grad()) result.input_grad = download(*backend, net.input_grad());
    for (const auto& parameter : store.parameters()) {
      result.grads[parameter->name] = download(*backend, parameter->grad, parameter->elements);
    }
    return result;
  }

  ReferenceNet reference() const {
    ReferenceNet net;
    const auto widen = [&](const float* data, std::int64_t count) {
      const Floats values = download(*backend, data, count);
      return Doubles(values.begin(), values.end());
    };
    for (const auto& p : store.parameters()) net.parameters[p->name] = widen(p->value, p->elements);
    for (const auto& s : store.batch_norms()) {
      net.parameters[s->name + ".running_mean"] = widen(s->running_mean, s->channels);
      net.parameters[s->name + ".running_var"] = widen(s->running_var, s->channels);
    }
    return net;
  }
};

/// On the host, in steps whose batches have come before: `batch` images of 8x8x3, one less, and
/// `batch` again. Checks that the device's memory does not grow.
inline long allocations_of_steps(const Describe& describe, std::int64_t batch,
                                 const PlanOptions& options = {true, true}) {
  TestNetwork net(describe, {batch, 8, 8, 3}, options);
  const auto steps = [&] {
    for (const std::int64_t present : {batch, batch - 1, batch}) {
      net.network->set_batch(present);
      net.network->zero_grad();
      net.network->forward({.seed = 1});
      net.network->backward({.seed = 1});
    }
  };
  steps();
  const std::size_t device_bytes = net.backend->allocated_bytes();
  const long before = allocation_count();
  steps();
  const long after = allocation_count();
  CHECK(net.backend->allocated_bytes() == device_bytes);
  return after - before;
}

}  // namespace lockstep::test
