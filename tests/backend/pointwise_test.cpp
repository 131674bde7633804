// Copy, ReLU, sum and dropout, dense and as channel ranges.

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "backend/operand.h"
#include "lockstep/core/rng.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

const std::vector<Shape> kShapes = {{0, 4, 5, 3},  {1, 1},           {7, 3},
                                    {2, 5, 7, 16}, {2, 3, 4, 5, 11}, {2, 60, 61, 8}};

// Calls body(backend, shape, margins) for every backend, dense and as a channel range.
void for_each_layout(const std::function<void(Backend&, const Shape&, Margins)>& body) {
  for (NamedBackend& named : available_backends()) {
    for (const Shape& shape : kShapes) {
      for (const Margins margins : {Margins{}, Margins{3, 2}}) {
        CAPTURE(named.name);
        CAPTURE(to_string(shape));
        CAPTURE(margins.before);
        body(*named.backend, shape, margins);
      }
    }
  }
}

float relu(float value) { return value > 0 ? value : 0; }

}  // namespace

TEST_CASE("copy writes or accumulates between any strides") {
  for_each_layout([](Backend& backend, const Shape& shape, Margins margins) {
    const Values from = random_values(shape, 1), before = random_values(shape, 2);
    const Operand source(backend, shape, from, margins);
    const Operand destination(backend, shape, before);
    backend.copy(source.tensor(), destination.tensor(), false);
    CHECK(destination.get() == from);
    const Operand sum(backend, shape, before, {1, 0});
    backend.copy(destination.tensor(), sum.tensor(), true);
    Values expected = before;
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += from[i];
    CHECK(sum.get() == expected);
    CHECK(sum.margins_untouched());
  });
}

TEST_CASE("ReLU and its gradient") {
  for_each_layout([](Backend& backend, const Shape& shape, Margins margins) {
    const Values x = random_values(shape, 3), grad = random_values(shape, 4);
    const Operand input(backend, shape, x, margins), output(backend, shape, margins);
    backend.relu_forward(input.tensor(), output.tensor());
    const Operand grad_y(backend, shape, grad), grad_x(backend, shape, margins);
    backend.relu_backward(output.tensor(), grad_y.tensor(), grad_x.tensor(), false);
    Values y = x, passed = grad, doubled = grad;
    for (std::size_t i = 0; i < x.size(); ++i) {
      y[i] = relu(x[i]);
      passed[i] = x[i] > 0 ? grad[i] : 0;
      doubled[i] = 2 * passed[i];
    }
    CHECK(output.get() == y);
    CHECK(grad_x.get() == passed);
    backend.relu_backward(output.tensor(), grad_y.tensor(), grad_x.tensor(), true);
    CHECK(grad_x.get() == doubled);
    CHECK(output.margins_untouched());
    CHECK(grad_x.margins_untouched());
    backend.relu_forward(input.tensor(), input.tensor());
    CHECK(input.get() == y);
  });
}

TEST_CASE("ReLU lets NaN pass both ways") {
  for (NamedBackend& named : available_backends()) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const Operand x(*named.backend, {1, 2}, Values{nan, -1}), y(*named.backend, {1, 2});
    const Operand grad(*named.backend, {1, 2}, Values{3, 4});
    named.backend->relu_forward(x.tensor(), y.tensor());
    named.backend->relu_backward(y.tensor(), grad.tensor(), grad.tensor(), false);
    CHECK(std::isnan(y.get()[0]));
    CHECK(grad.get() == Values{3, 0});
  }
}

TEST_CASE("add sums, also in place") {
  for_each_layout([](Backend& backend, const Shape& shape, Margins margins) {
    const Values a = random_values(shape, 5), b = random_values(shape, 6);
    const Operand left(backend, shape, a, margins), right(backend, shape, b);
    const Operand sum(backend, shape, margins);
    backend.add(left.tensor(), right.tensor(), sum.tensor());
    Values expected = a;
    for (std::size_t i = 0; i < a.size(); ++i) expected[i] += b[i];
    CHECK(sum.get() == expected);
    CHECK(sum.margins_untouched());
    backend.add(left.tensor(), right.tensor(), left.tensor());
    CHECK(left.get() == expected);
  });
}

TEST_CASE("dropout drops by sample and element, whatever the layout") {
  constexpr float kP = 0.3F;
  for_each_layout([](Backend& backend, const Shape& shape, Margins margins) {
    const Values x = random_values(shape, 7);
    const Operand input(backend, shape, x, margins), output(backend, shape, margins);
    backend.dropout(input.tensor(), output.tensor(), kP, 99, 5, false);
    Values expected(x.size());
    for (std::int64_t n = 0; n < shape.batch(); ++n) {
      Rng rng(99, RngPurpose::kDropout, static_cast<std::uint64_t>(n + 5));
      const std::int64_t sample = shape.rows_per_sample() * shape.channels();
      for (std::int64_t i = n * sample; i < (n + 1) * sample; ++i) {
        expected[i] = rng.uniform() >= kP ? x[i] * (1 / (1 - kP)) : 0;
      }
    }
    CHECK(output.get() == expected);
    backend.dropout(input.tensor(), output.tensor(), kP, 99, 5, true);
    for (float& value : expected) value *= 2;
    CHECK(output.get() == expected);
    CHECK(output.margins_untouched());
  });
}

TEST_CASE("dropout keeps the right share and does not depend on the split of the batch") {
  const Shape shape{4, 20, 25, 16};
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    const Operand x(*named.backend, shape,
                    Values(static_cast<std::size_t>(shape.elements()), 1.0F));
    const Operand whole(*named.backend, shape), parts(*named.backend, shape);
    named.backend->dropout(x.tensor(), whole.tensor(), 0.25F, 1, 0, false);
    for (const auto& [begin, count] : {std::pair{0, 3}, std::pair{3, 1}}) {
      named.backend->dropout(x.tensor().sample_range(begin, count),
                             parts.tensor().sample_range(begin, count), 0.25F, 1, begin, false);
    }
    CHECK(whole.get() == parts.get());
    double kept = 0;
    for (const float value : whole.get()) kept += value > 0 ? 1 : 0;
    CHECK(kept / static_cast<double>(shape.elements()) == doctest::Approx(0.75).epsilon(0.02));
    CHECK_THROWS_AS(named.backend->dropout(x.tensor(), whole.tensor(), 1.0F, 1, 0, false), Error);
    named.backend->dropout(x.tensor(), whole.tensor(), 0.0F, 1, 0, false);
    CHECK(whole.get() == x.get());
  }
}

TEST_CASE("operands of different shapes are refused") {
  for (NamedBackend& named : available_backends()) {
    const Operand a(*named.backend, {2, 3}), b(*named.backend, {3, 2});
    CHECK_THROWS_AS(named.backend->add(a.tensor(), b.tensor(), a.tensor()), Error);
    CHECK_THROWS_AS(named.backend->relu_forward(a.tensor(), b.tensor()), Error);
    CHECK_THROWS_AS(named.backend->copy(a.tensor(), b.tensor(), true), Error);
  }
}

}  // namespace lockstep::test
