// Losses of elements by the example of the squared error: against its definition in double.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "backend/device_number.h"
#include "backend/formulas.h"
#include "backend/operand.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

const FormulaOf<SquaredError> kSquares{SquaredError{}};

struct SquaredErrorCase {
  Shape shape;
  Margins margins;  // of the output and its gradient
  float grad_scale = 1.0F;
};

void check_squared_error(const TypedBackend& on, const SquaredErrorCase& c) {
  const Values output = on.random(c.shape, 1, 2.0F), target = random_values(c.shape, 2);
  const double normalizer = 1.5 * static_cast<double>(c.shape.elements());
  double expected = 0;
  Doubles gradient(output.size());
  for (std::size_t i = 0; i < output.size(); ++i) {
    const double difference = static_cast<double>(output[i]) - static_cast<double>(target[i]);
    expected += difference * difference / normalizer;
    gradient[i] = static_cast<double>(c.grad_scale) * 2 * difference / normalizer;
  }
  const Operand y(on, c.shape, output, c.margins), t(on.backend, c.shape, target);
  const Operand grad_y(on, c.shape, c.margins);
  const DeviceNumber<double> loss(on.backend, 0.0);
  ElementLosses arguments{.formula = &kSquares,
                          .output = y.tensor(),
                          .target = t.tensor(),
                          .normalizer = normalizer,
                          .grad_output = grad_y.tensor(),
                          .loss = loss.pointer(),
                          .grad_scale = c.grad_scale};
  on->losses().element_losses(arguments);
  CHECK(loss.get() == doctest::Approx(expected).epsilon(1e-6));
  CHECK(relative_error(grad_y, gradient) < 1e-6);
  CHECK(grad_y.margins_untouched());
  // Without a gradient the loss is the same, and it is added to what is there.
  const double once = loss.get();
  arguments.grad_output = {};
  on->losses().element_losses(arguments);
  CHECK(loss.get() == 2 * once);
}

TEST_CASE("losses of elements: a squared error and its gradient match the definition") {
  for_each_type([](const TypedBackend& on) {
    for (const SquaredErrorCase& c : std::vector<SquaredErrorCase>{
             {{2, 7, 9, 11}, {}},
             {{3, 5, 6, 16}, {}, 256.0F},
             {{2, 5, 6, 16}, {8, 3}},
             {{4, 1}, {}},
             {{5, 13}, {1, 2}},
             {{2, 3, 4, 5, 8}, {}},
             {{2, 90, 70, 3}, {}},
             {{1, 4, 20'000}, {}},
         }) {
      CAPTURE(to_string(c.shape));
      check_squared_error(on, c);
    }
  });
}

TEST_CASE("losses of elements are divided by what device memory holds when they are computed") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Backend& backend = *named.backend;
    const Shape shape{2, 2};
    const Operand y(backend, shape, {1, 2, 3, 4}), t(backend, shape, {0, 2, 5, 4});
    const Operand grad_y(backend, shape);
    const DeviceNumber<double> loss(backend, 0.0);
    DeviceNumber<double> normalizer(backend, 2.0);
    const DeviceNumber<float> scale(backend, 4.0F);
    const ElementLosses arguments{.formula = &kSquares,
                                  .output = y.tensor(),
                                  .target = t.tensor(),
                                  .normalizer = {2.0, normalizer.pointer()},
                                  .grad_output = grad_y.tensor(),
                                  .loss = loss.pointer(),
                                  .grad_scale = {0.0F, scale.pointer()}};
    backend.losses().element_losses(arguments);
    CHECK(loss.get() == 5.0 / 4);
    CHECK(grad_y.get() == Values{2, 0, -4, 0});
    normalizer.set(-2.0);  // there is nothing
    backend.losses().element_losses(arguments);
    CHECK(loss.get() == 5.0 / 4);
    CHECK(grad_y.get() == Values(4, 0.0F));
  }
}

TEST_CASE("an output or a target that is not finite makes losses of elements not finite") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    for (const bool in_target : {false, true}) {
      Values values[2] = {{1, 2, 3}, {1, 2, 3}};
      values[in_target ? 1 : 0][1] = std::numeric_limits<float>::quiet_NaN();
      const Operand y(*named.backend, {1, 3}, values[0]), t(*named.backend, {1, 3}, values[1]);
      const DeviceNumber<double> loss(*named.backend, 0.0);
      named.backend->losses().element_losses({.formula = &kSquares,
                                              .output = y.tensor(),
                                              .target = t.tensor(),
                                              .normalizer = 3.0,
                                              .grad_output = {},
                                              .loss = loss.pointer()});
      CHECK(std::isnan(loss.get()));
    }
  }
}

TEST_CASE("targets that do not fit the output are errors; no samples, no loss") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Backend& backend = *named.backend;
    const Operand y(backend, {2, 3}), t(backend, {3, 2});
    const DeviceNumber<double> loss(backend, 0.0);
    CHECK_THROWS_WITH_AS(
        backend.losses().element_losses({.formula = &kSquares,
                                         .output = y.tensor(),
                                         .target = t.tensor(),
                                         .grad_output = {},
                                         .loss = loss.pointer()}),
        doctest::Contains("expected a target in fp32 of shape [2, 3], got fp32 of [3, 2]"), Error);
    const Tensor none(nullptr, {0, 3});
    backend.losses().element_losses({.formula = &kSquares,
                                     .output = none,
                                     .target = none,
                                     .grad_output = none,
                                     .loss = loss.pointer()});
    CHECK(loss.get() == 0);
  }
}

}  // namespace
}  // namespace lockstep::test
