// Numbers of an operation that lie in device memory: a step that was recorded once reads them anew.

#include <doctest/doctest.h>

#include <cstring>
#include <limits>

#include "backend/device_number.h"
#include "backend/operand.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

/// Loss and gradient of two pixels, the second one ignored.
struct PixelLoss {
  double loss;
  Values gradient;
};

PixelLoss pixel_loss(Backend& backend, DeviceScalar<double> normalizer, bool weighted) {
  const Shape shape{1, 1, 2, 3};
  const Operand logits(backend, shape, {1, 2, 4, 3, 2, 1}), gradient(backend, shape);
  const Operand class_weight(backend, {1, 3}, {0.5F, 0, 2});
  const Storage labels = backend.allocate(4);
  const Tensor label_tensor(labels.data(), shape.with_channels(1), DType::kUInt16);
  const std::uint16_t values[] = {2, 255};
  backend.upload(label_tensor, values);
  const DeviceNumber<double> loss(backend, 0.0);
  backend.losses().cross_entropy({logits.tensor(), label_tensor, 255,
                                  weighted ? class_weight.floats() : nullptr, normalizer,
                                  gradient.tensor(), loss.pointer()});
  return {loss.get(), gradient.get()};
}

TEST_CASE("a loss is divided by what device memory holds when it is computed") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Backend& backend = *named.backend;
    DeviceNumber<double> normalizer(backend, 5.0);
    for (const bool weighted : {false, true}) {
      normalizer.set(5.0);
      const PixelLoss expected = pixel_loss(backend, 8.0, weighted);
      CHECK(expected.loss > 0);
      const PixelLoss got = pixel_loss(backend, {3.0, normalizer.pointer()}, weighted);
      CHECK(got.loss == expected.loss);
      CHECK(got.gradient == expected.gradient);
      normalizer.set(0.0);
      const PixelLoss nothing = pixel_loss(backend, {0.0, normalizer.pointer()}, weighted);
      CHECK(nothing.loss == 0);
      CHECK(nothing.gradient == Values(6, 0.0F));
    }
  }
}

TEST_CASE("dropout takes its seed from device memory") {
  const Shape shape{2, 3, 5, 7};
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Backend& backend = *named.backend;
    const Operand x(backend, shape, random_values(shape, 3)), a(backend, shape), b(backend, shape);
    const DeviceNumber<std::uint64_t> seed(backend, 41);
    backend.activations().dropout(x.tensor(), a.tensor(), 0.4F, 50, 1, false);
    backend.activations().dropout(x.tensor(), b.tensor(), 0.4F, {9, seed.pointer()}, 1, false);
    CHECK(a.get() == b.get());
    backend.activations().dropout(x.tensor(), b.tensor(), 0.4F, {8, seed.pointer()}, 1, false);
    CHECK(a.get() != b.get());
  }
}

TEST_CASE("SGD takes its rate from device memory, and changes nothing after a loss gone wrong") {
  const Shape shape{1, 37};
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Backend& backend = *named.backend;
    const Values weights = random_values(shape, 1), velocities = random_values(shape, 2);
    const Operand grad(backend, shape, random_values(shape, 3));
    const Operand weight(backend, shape, weights), velocity(backend, shape, velocities);
    const float* grads[] = {grad.floats(), grad.floats()};
    float* both[] = {weight.floats(), weight.floats()};
    const DeviceNumber<float> lr(backend, 0.25F);
    const DeviceNumber<double> first(backend, 0.5);
    DeviceNumber<double> second(backend, std::numeric_limits<double>::infinity());
    const double* losses[] = {first.pointer(), second.pointer()};
    const ParameterRange all{0, 37, 0};
    OptimizerShard shard{
        .grads = grads, .weights = both, .state = {velocity.floats()}, .ranges = {&all, 1}};
    shard.optimizer = Sgd{.momentum = 0};
    shard.lr = {0.0F, lr.pointer()};
    shard.losses = losses;
    const DeviceNumber<double> squared_norm(backend, 0.0);
    shard.squared_norm = squared_norm.pointer();
    for (const double bad :
         {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      second.set(bad);
      backend.optimizer().optimizer_update(shard);
      CHECK(weight.get() == weights);
      CHECK(velocity.get() == velocities);
      CHECK(squared_norm.get() == 0);
    }
    second.set(1e300);
    backend.optimizer().optimizer_update(shard);
    CHECK(squared_norm.get() > 0);
    const Values gradient = grad.get(), updated = weight.get();
    for (std::size_t i = 0; i < updated.size(); ++i) {
      CHECK(updated[i] == doctest::Approx(weights[i] - 0.25F * 2 * gradient[i]).epsilon(1e-6));
    }
  }
}

}  // namespace
}  // namespace lockstep::test
