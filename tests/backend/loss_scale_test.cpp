// What keeps fp16 in range, and what the host reads of a step.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "backend/device_number.h"
#include "backend/operand.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct FourSums {
  double values[4];
};

TEST_CASE("sums are reset, but for those that are not finite") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    const DeviceNumber<FourSums> memory(*named.backend, {{1e300, kNan, -kInfinity, 7}});
    named.backend->sums().reset_sums(memory.pointer()->values, 3);
    const FourSums got = memory.get();
    CHECK(got.values[0] == 0);
    CHECK(std::isnan(got.values[1]));
    CHECK(got.values[2] == -kInfinity);
    CHECK(got.values[3] == 7);
  }
}

TEST_CASE("a readback's slots keep what was computed before they were started") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Backend& backend = *named.backend;
    const Storage memory = backend.allocate(12);
    const Tensor tensor(memory.data(), {1, 3});
    const auto readback = backend.make_readback(tensor, 2);
    for (const int slot : {0, 1, 0}) {
      backend.fill(tensor, static_cast<float>(10 + slot));
      readback->start(slot);
    }
    backend.fill(tensor, 99);
    CHECK(static_cast<const float*>(readback->wait(1))[2] == 11);
    CHECK(static_cast<const float*>(readback->wait(0))[0] == 10);
  }
}

TEST_CASE("one gradient or a loss that is not finite is found wherever it is") {
  const float bad_values[] = {std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()};
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    for (const std::int64_t base : {0, 1}) {
      for (const std::int64_t elements : {0, 1, 7, 5003}) {
        CAPTURE(base);
        CAPTURE(elements);
        const Shape shape{1, elements + base + 1};
        Values values(static_cast<std::size_t>(elements + base + 1),
                      std::numeric_limits<float>::max());
        values.back() = bad_values[2];  // behind the gradients
        Operand grads(*named.backend, shape, values);
        DeviceNumber<double> loss(*named.backend, 0.5), guard(*named.backend, 0.0);
        const GradientCheck check{grads.floats() + base, elements, loss.pointer(), guard.pointer()};
        named.backend->optimizer().check_gradients(check);
        CHECK(guard.get() == 0);
        for (const std::int64_t at : {std::int64_t{0}, elements / 2, elements - 1}) {
          if (at < 0 || at >= elements) continue;
          Values changed = values;
          changed[static_cast<std::size_t>(base + at)] = bad_values[at % 3];
          grads.set(changed);
          guard.set(0);
          named.backend->optimizer().check_gradients(check);
          CHECK(guard.get() == kInfinity);
        }
        for (const double bad : {kInfinity, kNan}) {
          loss.set(bad);
          guard.set(0);
          named.backend->optimizer().check_gradients(check);
          CHECK(std::isnan(guard.get()));
        }
      }
    }
  }
}

TEST_CASE("the loss scale follows GradScaler's rule") {
  struct Case {
    LossScaleState before;
    std::vector<double> guards;
    LossScaleState after;
  };
  const Case cases[] = {
      {{65536, 0, 0, 0}, {0, 0, 0}, {65536, 0x1p-16F, 1, 0}},
      {{65536, 0, 3, 1}, {0, 0, 0}, {131072, 0x1p-17F, 0, 1}},
      {{65536, 0, 3, 1}, {0, 0, kInfinity}, {32768, 0x1p-15F, 0, 2}},
      {{1, 1, 3, 1}, {kInfinity, kInfinity}, {1, 1, 0, 2}},
      {{65536, 0x1p-16F, 3, 1}, {kInfinity, kNan, 0}, {65536, 0x1p-16F, 3, 1}},
      {{0x1p127F, 0, 3, 1}, {0}, {0x1p127F, 0x1p-127F, 0, 1}},
  };
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    for (const Case& c : cases) {
      CAPTURE(c.before.scale);
      const DeviceNumber<LossScaleState> state(*named.backend, c.before);
      std::vector<std::unique_ptr<DeviceNumber<double>>> memory;
      std::vector<const double*> guards;
      for (const double guard : c.guards) {
        memory.push_back(std::make_unique<DeviceNumber<double>>(*named.backend, guard));
        guards.push_back(memory.back()->pointer());
      }
      named.backend->optimizer().update_loss_scale({guards, state.pointer(), 4});
      CHECK(state.get() == c.after);
    }
  }
}

TEST_CASE("the loss's gradient is multiplied by the scale, and the loss is not") {
  const Shape shape{1, 2, 9, 3};
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Backend& backend = *named.backend;
    const Operand logits(backend, shape, random_values(shape, 4));
    const Operand class_weight(backend, {1, 3}, {0.5F, 3, 2});
    const Storage labels = backend.allocate(36);
    const Tensor label_tensor(labels.data(), shape.with_channels(1), DType::kUInt16);
    backend.fill(label_tensor, 1);
    const DeviceNumber<float> scale(backend, 1024);
    for (const bool weighted : {false, true}) {
      const float* weights = weighted ? class_weight.floats() : nullptr;
      const Operand plain(backend, shape), scaled(backend, shape);
      const DeviceNumber<double> plain_loss(backend, 0), scaled_loss(backend, 0);
      CrossEntropy arguments{logits.tensor(), label_tensor,        255, weights, 18.0,
                             plain.tensor(),  plain_loss.pointer()};
      backend.losses().cross_entropy(arguments);
      arguments.grad_logits = scaled.tensor();
      arguments.loss = scaled_loss.pointer();
      arguments.grad_scale = {0.0F, scale.pointer()};
      backend.losses().cross_entropy(arguments);
      CHECK(scaled_loss.get() == plain_loss.get());
      const Values expected = plain.get(), got = scaled.get();
      for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == 1024 * expected[i]);
    }
  }
}

TEST_CASE("SGD divides the scale out of gradients and norm") {
  const Shape shape{1, 37};
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Backend& backend = *named.backend;
    std::vector<Values> weights, velocities;
    std::vector<double> norms;
    for (const float scale : {1.0F, 4096.0F}) {
      Values gradients = random_values(shape, 3);
      for (float& gradient : gradients) gradient *= scale;
      const Operand grad(backend, shape, gradients),
          weight(backend, shape, random_values(shape, 1)),
          velocity(backend, shape, random_values(shape, 2));
      const float* grads[] = {grad.floats(), grad.floats()};
      float* both[] = {weight.floats(), weight.floats()};
      const DeviceNumber<float> inverse(backend, 1 / scale);
      const DeviceNumber<double> norm(backend, 0);
      const ParameterRange range{0, 37, 1e-2F};
      OptimizerShard shard{.grads = grads, .weights = both, .state = {velocity.floats()}};
      shard.ranges = {&range, 1};
      shard.lr = 0.25F;
      shard.optimizer = Sgd{.momentum = 0.9F};
      shard.squared_norm = norm.pointer();
      shard.grad_scale = {0.0F, inverse.pointer()};
      backend.optimizer().optimizer_update(shard);
      weights.push_back(weight.get());
      velocities.push_back(velocity.get());
      norms.push_back(norm.get());
    }
    CHECK(weights[0] == weights[1]);
    CHECK(velocities[0] == velocities[1]);
    CHECK(norms[0] == norms[1]);
  }
}

}  // namespace
}  // namespace lockstep::test
