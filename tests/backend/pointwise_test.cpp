// Copy, ReLU, sum and dropout, dense and as channel ranges.

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "backend/operand.h"
#include "core/rng.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

const std::vector<Shape> kShapes = {{0, 4, 5, 3},  {1, 1},           {7, 3},
                                    {2, 5, 7, 16}, {2, 3, 4, 5, 11}, {2, 60, 61, 8}};

// Packs of 16 bytes are possible, or not, because of where the range begins, or of its row stride.
const std::vector<Margins> kRanges = {{}, {8, 0}, {3, 5}, {8, 1}};

// Calls body(on, shape, margins) for every backend and type, dense and as channel ranges.
void for_each_layout(const std::function<void(const TypedBackend&, const Shape&, Margins)>& body) {
  for_each_type([&](const TypedBackend& on) {
    for (const Shape& shape : kShapes) {
      for (const Margins& margins : kRanges) {
        CAPTURE(to_string(shape));
        CAPTURE(margins.before);
        body(on, shape, margins);
      }
    }
  });
}

float relu(float value) { return value > 0 ? value : 0; }

}  // namespace

TEST_CASE("copy writes or accumulates between any strides") {
  for_each_layout([](const TypedBackend& on, const Shape& shape, Margins margins) {
    const Values from = on.random(shape, 1), before = on.random(shape, 2);
    const Operand source(on, shape, from, margins);
    const Operand destination(on, shape, before);
    on->copy(source.tensor(), destination.tensor(), false);
    CHECK(destination.get() == from);
    const Operand sum(on, shape, before, {1, 0});
    on->copy(destination.tensor(), sum.tensor(), true);
    Values expected = before;
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += from[i];
    CHECK(sum.get() == on.stored(expected));
    CHECK(sum.margins_untouched());
  });
}

TEST_CASE("ReLU and its gradient") {
  for_each_layout([](const TypedBackend& on, const Shape& shape, Margins margins) {
    const Values x = on.random(shape, 3), grad = on.random(shape, 4);
    const Operand input(on, shape, x, margins), output(on, shape, margins);
    on->activations().activation_forward(ActivationKind::kRelu, input.tensor(), output.tensor());
    const Operand grad_y(on, shape, grad), grad_x(on, shape, margins);
    on->activations().activation_backward(ActivationKind::kRelu, output.tensor(), grad_y.tensor(),
                                          grad_x.tensor(), false);
    Values y = x, passed = grad, doubled = grad;
    for (std::size_t i = 0; i < x.size(); ++i) {
      y[i] = relu(x[i]);
      passed[i] = x[i] > 0 ? grad[i] : 0;
      doubled[i] = 2 * passed[i];
    }
    CHECK(output.get() == y);
    CHECK(grad_x.get() == passed);
    on->activations().activation_backward(ActivationKind::kRelu, output.tensor(), grad_y.tensor(),
                                          grad_x.tensor(), true);
    CHECK(grad_x.get() == doubled);
    CHECK(output.margins_untouched());
    CHECK(grad_x.margins_untouched());
    on->activations().activation_forward(ActivationKind::kRelu, input.tensor(), input.tensor());
    CHECK(input.get() == y);
  });
}

TEST_CASE("ReLU lets NaN pass both ways") {
  for_each_type([](const TypedBackend& on) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const Operand x(on, {1, 2}, Values{nan, -1}), y(on, {1, 2});
    const Operand grad(on, {1, 2}, Values{3, 4});
    on->activations().activation_forward(ActivationKind::kRelu, x.tensor(), y.tensor());
    on->activations().activation_backward(ActivationKind::kRelu, y.tensor(), grad.tensor(),
                                          grad.tensor(), false);
    CHECK(std::isnan(y.get()[0]));
    CHECK(grad.get() == Values{3, 0});
  });
}

TEST_CASE("add sums, also in place") {
  for_each_layout([](const TypedBackend& on, const Shape& shape, Margins margins) {
    const Values a = on.random(shape, 5), b = on.random(shape, 6);
    const Operand left(on, shape, a, margins), right(on, shape, b);
    const Operand sum(on, shape, margins);
    on->activations().binary_forward(BinaryKind::kAdd, left.tensor(), right.tensor(), sum.tensor());
    Values expected = a;
    for (std::size_t i = 0; i < a.size(); ++i) expected[i] += b[i];
    CHECK(sum.get() == on.stored(expected));
    CHECK(sum.margins_untouched());
    on->activations().binary_forward(BinaryKind::kAdd, left.tensor(), right.tensor(),
                                     left.tensor());
    CHECK(left.get() == on.stored(expected));
  });
}

TEST_CASE("dropout drops by sample and element, whatever the layout") {
  constexpr float kP = 0.3F;
  for_each_layout([](const TypedBackend& on, const Shape& shape, Margins margins) {
    const Values x = on.random(shape, 7);
    const Operand input(on, shape, x, margins), output(on, shape, margins);
    on->activations().dropout(input.tensor(), output.tensor(), kP, 99, 5, false);
    Values expected(x.size());
    for (std::int64_t n = 0; n < shape.batch(); ++n) {
      Rng rng(99, RngPurpose::kDropout, static_cast<std::uint64_t>(n + 5));
      const std::int64_t sample = shape.rows_per_sample() * shape.channels();
      for (std::int64_t i = n * sample; i < (n + 1) * sample; ++i) {
        expected[i] = rng.uniform() >= kP ? x[i] * (1 / (1 - kP)) : 0;
      }
    }
    CHECK(output.get() == on.stored(expected));
    on->activations().dropout(input.tensor(), output.tensor(), kP, 99, 5, true);
    for (float& value : expected) value += test::stored(on.dtype, value);
    CHECK(output.get() == on.stored(expected));
    CHECK(output.margins_untouched());
  });
}

TEST_CASE("dropout keeps the right share and does not depend on the split of the batch") {
  const Shape shape{4, 20, 25, 16};
  for_each_type([&](const TypedBackend& on) {
    const Operand x(on, shape, Values(static_cast<std::size_t>(shape.elements()), 1.0F));
    const Operand whole(on, shape), parts(on, shape);
    on->activations().dropout(x.tensor(), whole.tensor(), 0.25F, 1, 0, false);
    for (const auto& [begin, count] : {std::pair{0, 3}, std::pair{3, 1}}) {
      on->activations().dropout(x.tensor().sample_range(begin, count),
                                parts.tensor().sample_range(begin, count), 0.25F, 1, begin, false);
    }
    CHECK(whole.get() == parts.get());
    double kept = 0;
    for (const float value : whole.get()) kept += value > 0 ? 1 : 0;
    CHECK(kept / static_cast<double>(shape.elements()) == doctest::Approx(0.75).epsilon(0.02));
    CHECK_THROWS_AS(on->activations().dropout(x.tensor(), whole.tensor(), 1.0F, 1, 0, false),
                    Error);
    on->activations().dropout(x.tensor(), whole.tensor(), 0.0F, 1, 0, false);
    CHECK(whole.get() == x.get());
  });
}

TEST_CASE("copy converts between all types that a backend has, rounding to the nearest") {
  for_each_layout([](const TypedBackend& from, const Shape& shape, Margins margins) {
    for (const DType dtype : from.types) {
      const TypedBackend to(from.backend, dtype);
      CAPTURE(std::string(to_string(dtype)));
      const Values values = from.random(shape, 8), before = to.random(shape, 9);
      const Operand source(from, shape, values, margins);
      const Operand converted(to, shape, margins), sum(to, shape, before);
      from->copy(source.tensor(), converted.tensor(), false);
      from->copy(source.tensor(), sum.tensor(), true);
      Values expected = before;
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += values[i];
      CHECK(converted.get() == to.stored(values));
      CHECK(converted.margins_untouched());
      CHECK(sum.get() == to.stored(expected));
    }
  });
}

TEST_CASE("operands of different shapes are refused") {
  for_each_type([](const TypedBackend& on) {
    const Operand a(on, {2, 3}), b(on, {3, 2});
    CHECK_THROWS_AS(
        on->activations().binary_forward(BinaryKind::kAdd, a.tensor(), b.tensor(), a.tensor()),
        Error);
    CHECK_THROWS_AS(
        on->activations().activation_forward(ActivationKind::kRelu, a.tensor(), b.tensor()), Error);
    CHECK_THROWS_AS(on->copy(a.tensor(), b.tensor(), true), Error);
  });
}

}  // namespace lockstep::test
