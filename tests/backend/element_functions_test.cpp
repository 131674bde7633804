// Functions of one and two elements, softmax and sums over images: values against the standard
// library's in double, gradients, operands of all shapes, dense and as channel ranges.

#include "backend/element_functions.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "backend/operand.h"
#include "core/image_tree.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

/// The largest |f(x) - reference(x)| between two ends, relative to |reference(x)| where `relative`.
template <typename Function, typename Reference>
double largest_error(double begin, double end, bool relative, const Function& f,
                     const Reference& reference) {
  double largest = 0;
  constexpr int kPoints = 40000;
  for (int i = 0; i <= kPoints; ++i) {
    const auto x = static_cast<float>(begin + (end - begin) * i / kPoints);
    const double expected = reference(static_cast<double>(x));
    if (expected == 0) continue;
    const double error = std::abs(static_cast<double>(f(x)) - expected);
    largest = std::max(largest, relative ? error / std::abs(expected) : error);
  }
  return largest;
}

constexpr double kUlp = 0x1p-24;  // half a unit in the last place of a number near 1

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }

struct ActivationCase {
  Activation activation;
  double (*f)(double x);
  double (*derivative)(double x);
};

const ActivationCase kActivationCases[] = {
    {ActivationKind::kRelu, [](double x) { return std::max(x, 0.0); },
     [](double x) { return x > 0 ? 1.0 : 0.0; }},
    {ActivationKind::kRelu6, [](double x) { return std::clamp(x, 0.0, 6.0); },
     [](double x) { return x > 0 && x < 6 ? 1.0 : 0.0; }},
    {{ActivationKind::kLeakyRelu, 0.25F},
     [](double x) { return x < 0 ? 0.25 * x : x; },
     [](double x) { return x > 0 ? 1.0 : 0.25; }},
    {ActivationKind::kSigmoid, sigmoid, [](double x) { return sigmoid(x) * sigmoid(-x); }},
    {ActivationKind::kHardsigmoid, [](double x) { return std::clamp(x / 6 + 0.5, 0.0, 1.0); },
     [](double x) { return std::abs(x) < 3 ? 1.0 / 6 : 0.0; }},
    {ActivationKind::kTanh, [](double x) { return std::tanh(x); },
     [](double x) { return 1 / (std::cosh(x) * std::cosh(x)); }},
    {ActivationKind::kSilu, silu, [](double x) { return sigmoid(x) * (1 + x * sigmoid(-x)); }},
    {ActivationKind::kHardswish, [](double x) { return x * std::clamp(x / 6 + 0.5, 0.0, 1.0); },
     [](double x) { return x < -3  ? 0.0
                           : x > 3 ? 1.0
                                   : x / 3 + 0.5; }},
    {ActivationKind::kGelu, [](double x) { return 0.5 * x * std::erfc(-x * std::sqrt(0.5)); },
     [](double x) {
       return 0.5 * std::erfc(-x * std::sqrt(0.5)) +
              x * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
     }},
};

const std::vector<Shape> kFunctionShapes = {
    {0, 4, 5, 3}, {1, 1}, {7, 3}, {3, 2, 3, 16}, {2, 9, 5, 40}};
const std::vector<Margins> kFunctionRanges = {{}, {8, 0}, {3, 5}};

void for_each_function_layout(
    const std::function<void(const TypedBackend&, const Shape&, Margins)>& body) {
  for_each_type([&](const TypedBackend& on) {
    for (const Shape& shape : kFunctionShapes) {
      for (const Margins& margins : kFunctionRanges) {
        CAPTURE(to_string(shape));
        CAPTURE(margins.before);
        body(on, shape, margins);
      }
    }
  });
}

template <typename Function>
Doubles mapped(const Values& x, const Function& f) {
  Doubles y;
  for (const float value : x) y.push_back(f(static_cast<double>(value)));
  return y;
}

/// Where the activation's gradient is taken from the stored y, the derivative there.
Doubles derivatives(const ActivationCase& of, const Values& x, const Values& saved) {
  Doubles result;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto at = static_cast<double>(saved[i]);
    if (of.activation.kind == ActivationKind::kSigmoid) {
      result.push_back(at * (1 - at));
    } else if (of.activation.kind == ActivationKind::kTanh) {
      result.push_back(1 - at * at);
    } else {
      result.push_back(of.derivative(static_cast<double>(x[i])));
    }
  }
  return result;
}

void check_activation(const TypedBackend& on, const Shape& shape, Margins margins,
                      const ActivationCase& of) {
  const Values x = on.random(shape, 3, 3.0F), grad = on.random(shape, 4);
  const Operand input(on, shape, x, margins), output(on, shape, margins);
  on->activations().activation_forward(of.activation, input.tensor(), output.tensor());
  CHECK(relative_error(output, mapped(x, of.f)) < 1e-6);
  CHECK(output.margins_untouched());
  const Operand& saved = of.activation.from_output() ? output : input;
  const Operand grad_y(on, shape, grad, {1, 0}), grad_x(on, shape, margins);
  on->activations().activation_backward(of.activation, saved.tensor(), grad_y.tensor(),
                                        grad_x.tensor(), false);
  Doubles expected = derivatives(of, x, saved.get());
  for (std::size_t i = 0; i < grad.size(); ++i) expected[i] *= static_cast<double>(grad[i]);
  CHECK(relative_error(grad_x, expected) < 1e-6);
  const Values once = grad_x.get();
  on->activations().activation_backward(of.activation, saved.tensor(), grad_y.tensor(),
                                        grad_x.tensor(), true);
  Doubles twice = expected;
  for (std::size_t i = 0; i < grad.size(); ++i) twice[i] += static_cast<double>(once[i]);
  CHECK(relative_error(grad_x, twice) < 1e-6);
  CHECK(grad_x.margins_untouched());
}

double value_of(BinaryKind kind, double a, double b) {
  switch (kind) {
    case BinaryKind::kAdd:
      return a + b;
    case BinaryKind::kSubtract:
      return a - b;
    case BinaryKind::kMultiply:
      return a * b;
    case BinaryKind::kPRelu:
      return a > 0 ? a : a * b;
  }
  return 0;
}
double left_of(BinaryKind kind, double a, double b) {
  if (kind == BinaryKind::kMultiply) return b;
  return kind == BinaryKind::kPRelu && a <= 0 ? b : 1;
}
double right_of(BinaryKind kind, double a) {
  if (kind == BinaryKind::kMultiply) return a;
  if (kind == BinaryKind::kPRelu) return a > 0 ? 0 : a;
  return kind == BinaryKind::kSubtract ? -1 : 1;
}

/// Which element of b element i of a meets.
struct Met {
  Shape a, b;
  std::size_t of(std::size_t i) const {
    const auto channels = static_cast<std::size_t>(a.channels());
    const auto rows = static_cast<std::size_t>(a.rows());
    const auto b_rows = static_cast<std::size_t>(b.rows());
    const auto b_channels = static_cast<std::size_t>(b.channels());
    return i / channels * b_rows / rows * b_channels + (b_channels == 1 ? 0 : i % channels);
  }
};

constexpr BinaryKind kBinaryKinds[] = {BinaryKind::kAdd, BinaryKind::kSubtract,
                                       BinaryKind::kMultiply, BinaryKind::kPRelu};

void check_binary(const TypedBackend& on, const Shape& shape, Margins margins, const Shape& b_shape,
                  BinaryKind kind) {
  CAPTURE(std::string(to_string(kind)));
  CAPTURE(to_string(b_shape));
  const Met met{shape, b_shape};
  const Values a = on.random(shape, 5), b = on.random(b_shape, 6), grad = on.random(shape, 7);
  const Operand left(on, shape, a, margins), right(on, b_shape, b, {0, 1});
  const Operand y(on, shape, Margins{2, 0}), grad_y(on, shape, grad), grad_a(on, shape, margins);
  on->activations().binary_forward(kind, left.tensor(), right.tensor(), y.tensor());
  on->activations().binary_backward_left(kind, left.tensor(), right.tensor(), grad_y.tensor(),
                                         grad_a.tensor(), false);
  const Shape sum_shape = b_shape.rows() == 1 ? Shape{shape.batch(), b_shape.channels()} : b_shape;
  const Met summed{shape, sum_shape};
  const Operand grad_b(on, sum_shape, Margins{1, 2});
  on->activations().binary_backward_right(kind, left.tensor(), grad_y.tensor(), grad_b.tensor(),
                                          false);
  Doubles values, lefts, rights(static_cast<std::size_t>(sum_shape.elements()), 0.0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto p = static_cast<double>(a[i]), q = static_cast<double>(b[met.of(i)]);
    const auto g = static_cast<double>(grad[i]);
    values.push_back(value_of(kind, p, q));
    lefts.push_back(left_of(kind, p, q) * g);
    rights[summed.of(i)] += right_of(kind, p) * g;
  }
  CHECK(relative_error(y, values) < 1e-6);
  CHECK(relative_error(grad_a, lefts) < 1e-6);
  CHECK(relative_error(grad_b, rights) < 1e-6);
  CHECK(y.margins_untouched());
  CHECK(grad_a.margins_untouched());
  CHECK(grad_b.margins_untouched());
  const Values a_once = grad_a.get(), b_once = grad_b.get();
  on->activations().binary_backward_left(kind, left.tensor(), right.tensor(), grad_y.tensor(),
                                         grad_a.tensor(), true);
  on->activations().binary_backward_right(kind, left.tensor(), grad_y.tensor(), grad_b.tensor(),
                                          true);
  for (std::size_t i = 0; i < lefts.size(); ++i) lefts[i] += static_cast<double>(a_once[i]);
  for (std::size_t i = 0; i < rights.size(); ++i) rights[i] += static_cast<double>(b_once[i]);
  CHECK(relative_error(grad_a, lefts) < 1e-6);
  CHECK(relative_error(grad_b, rights) < 1e-6);
}

}  // namespace

TEST_CASE("exponential, tanh and the normal distribution are within their bounds") {
  CHECK(largest_error(-86.9, 87.9, true, exponential, [](double x) { return std::exp(x); }) <
        2 * kUlp);
  CHECK(largest_error(-12, 12, true, hyperbolic_tangent, [](double x) { return std::tanh(x); }) <
        3 * kUlp);
  CHECK(largest_error(-0.01, 0.01, true, hyperbolic_tangent,
                      [](double x) { return std::tanh(x); }) < 2 * kUlp);
  CHECK(largest_error(-9, 9, false, normal_distribution,
                      [](double x) { return 0.5 * std::erfc(-x * std::sqrt(0.5)); }) < 1e-7);
  CHECK(exponential(-1000.0F) == exponential(-87.0F));
  CHECK(hyperbolic_tangent(1000.0F) == 1.0F);
  CHECK(hyperbolic_tangent(-1000.0F) == -1.0F);
  CHECK(normal_distribution(-40.0F) == 0.0F);
  CHECK(normal_distribution(40.0F) == 1.0F);
}

TEST_CASE("activations let NaN pass") {
  for_each_type([](const TypedBackend& on) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const ActivationCase& each : kActivationCases) {
      CAPTURE(std::string(to_string(each.activation.kind)));
      const Operand x(on, {1, 2}, Values{nan, 1}), y(on, {1, 2});
      on->activations().activation_forward(each.activation, x.tensor(), y.tensor());
      CHECK(std::isnan(y.get()[0]));
      CHECK_FALSE(std::isnan(y.get()[1]));
    }
  });
}

TEST_CASE("activations and their gradients") {
  for_each_function_layout([](const TypedBackend& on, const Shape& shape, Margins margins) {
    for (const ActivationCase& each : kActivationCases) {
      CAPTURE(std::string(to_string(each.activation.kind)));
      check_activation(on, shape, margins, each);
    }
  });
}

TEST_CASE("functions of two elements, of which the second is met again and again") {
  for_each_function_layout([](const TypedBackend& on, const Shape& shape, Margins margins) {
    const std::int64_t batch = shape.batch(), channels = shape.channels();
    for (const BinaryKind kind : kBinaryKinds) {
      check_binary(on, shape, margins, shape, kind);
      check_binary(on, shape, margins, shape.with_channels(1), kind);
      check_binary(on, shape, margins, {batch, channels}, kind);
      check_binary(on, shape, margins, {batch, 1}, kind);
      check_binary(on, shape, margins, {1, channels}, kind);
      check_binary(on, shape, margins, {1, 1}, kind);
    }
  });
}

TEST_CASE("a second operand may be fp32 where activations are narrower") {
  const Shape shape{2, 3, 5, 8};
  for_each_type([&](const TypedBackend& on) {
    const TypedBackend wide(on.backend);
    const Values x = on.random(shape, 1), slope = random_values({1, 8}, 2);
    const Operand a(on, shape, x), y(on, shape), b(wide, {1, 8}, slope), sums(wide, {2, 8});
    on->activations().binary_forward(BinaryKind::kPRelu, a.tensor(), b.tensor(), y.tensor());
    on->activations().binary_backward_right(BinaryKind::kPRelu, a.tensor(), a.tensor(),
                                            sums.tensor(), false);
    Doubles values, squares(16, 0.0);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto value = static_cast<double>(x[i]);
      values.push_back(value_of(BinaryKind::kPRelu, value, static_cast<double>(slope[i % 8])));
      squares[i / (x.size() / 2) * 8 + i % 8] += value > 0 ? 0 : value * value;
    }
    CHECK(relative_error(y, values) < 1e-6);
    CHECK(relative_error(sums, squares) < 1e-6);
  });
}

TEST_CASE("what a sample adds to the gradient of the second operand depends on no other sample") {
  const Shape shape{5, 23, 27, 40};  // rows for several blocks
  for_each_type([&](const TypedBackend& on) {
    const Operand a(on, shape, on.random(shape, 1)), grad(on, shape, on.random(shape, 2));
    const Operand all(on, {5, 40}), each(on, {5, 40});
    on->activations().binary_backward_right(BinaryKind::kMultiply, a.tensor(), grad.tensor(),
                                            all.tensor(), false);
    for (std::int64_t n = 0; n < 5; ++n) {
      on->activations().binary_backward_right(BinaryKind::kMultiply, a.tensor().sample_range(n, 1),
                                              grad.tensor().sample_range(n, 1),
                                              each.tensor().sample_range(n, 1), false);
    }
    CHECK(each.get() == all.get());
    const Values left = a.get(), right = grad.get();
    Doubles sums(5 * 40);
    for (std::size_t i = 0; i < left.size(); ++i) {
      sums[i / (left.size() / 5) * 40 + i % 40] +=
          static_cast<double>(left[i]) * static_cast<double>(right[i]);
    }
    CHECK(relative_error(all, sums) < 1e-6);
  });
}

TEST_CASE("operands that do not fit are refused") {
  for_each_type([](const TypedBackend& on) {
    const Operand a(on, {2, 3, 4, 5}), b(on, {2, 3, 1, 5}), c(on, {2, 3}), all(on, {1, 5});
    CHECK_THROWS_AS(
        on->activations().binary_forward(BinaryKind::kAdd, a.tensor(), b.tensor(), a.tensor()),
        Error);
    CHECK_THROWS_AS(
        on->activations().binary_forward(BinaryKind::kAdd, a.tensor(), c.tensor(), a.tensor()),
        Error);
    CHECK_THROWS_AS(on->activations().binary_backward_right(BinaryKind::kAdd, a.tensor(),
                                                            a.tensor(), all.tensor(), false),
                    Error);
  });
}

TEST_CASE("softmax and its gradient") {
  for_each_function_layout([](const TypedBackend& on, const Shape& shape, Margins margins) {
    const Values x = on.random(shape, 8, 4.0F), grad = on.random(shape, 9);
    const Operand input(on, shape, x, margins), output(on, shape, Margins{1, 1});
    on->activations().softmax_forward(input.tensor(), output.tensor());
    const Values y = output.get();
    const auto channels = static_cast<std::size_t>(shape.channels());
    Doubles expected(x.size()), gradient(x.size());
    for (std::size_t row = 0; row < x.size(); row += channels) {
      double sum = 0, mean = 0;
      for (std::size_t c = row; c < row + channels; ++c) {
        sum += std::exp(static_cast<double>(x[c]));
        mean += static_cast<double>(y[c]) * static_cast<double>(grad[c]);
      }
      for (std::size_t c = row; c < row + channels; ++c) {
        expected[c] = std::exp(static_cast<double>(x[c])) / sum;
        gradient[c] = static_cast<double>(y[c]) * (static_cast<double>(grad[c]) - mean);
      }
    }
    CHECK(relative_error(output, expected) < 1e-6);
    CHECK(output.margins_untouched());
    const Operand grad_y(on, shape, grad, margins), grad_x(on, shape, grad, {0, 1});
    on->activations().softmax_backward(output.tensor(), grad_y.tensor(), grad_x.tensor(), false);
    CHECK(relative_error(grad_x, gradient) < 1e-6);
    const Values once = grad_x.get();
    on->activations().softmax_backward(output.tensor(), grad_y.tensor(), grad_x.tensor(), true);
    for (std::size_t i = 0; i < once.size(); ++i) gradient[i] += static_cast<double>(once[i]);
    CHECK(relative_error(grad_x, gradient) < 1e-6);
    CHECK(grad_x.margins_untouched());
  });
}

TEST_CASE("softmax of logits of any size") {
  for_each_type([](const TypedBackend& on) {
    const Operand x(on, {2, 3}, Values{3000, 2990, -3000, -5, -5, -5}), y(on, {2, 3});
    on->activations().softmax_forward(x.tensor(), y.tensor());
    const double large = 1 / (1 + std::exp(-10.0 + (on.dtype == DType::kBFloat16 ? -6.0 : 0.0)));
    CHECK(static_cast<double>(y.get()[0]) == doctest::Approx(large).epsilon(1e-2));
    CHECK(static_cast<double>(y.get()[2]) < 1e-30);
    CHECK(static_cast<double>(y.get()[4]) == doctest::Approx(1.0 / 3).epsilon(1e-2));
  });
}

TEST_CASE("sums over images are taken in the tree") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Backend& backend = *named.backend;
    for (const std::int64_t images : {1, 2, 3, 5, 8, 13, 33}) {
      CAPTURE(images);
      const Shape shape{images, 150};
      const Values x = random_values(shape, 1), before = random_values({1, 150}, 2);
      const Operand from(backend, shape, x), sum(backend, {1, 150}, before);
      backend.sums().sum_over_images(from.tensor(), sum.floats());
      Values nodes(static_cast<std::size_t>(image_tree_nodes(images) * 150));
      for (std::int64_t n = 0; n < images; ++n) {
        add_image(n, x.data() + n * 150, 150, nodes.data(), 150);
      }
      const float* root = finish_image_tree(images, 150, nodes.data(), 150);
      Values expected = before;
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += root[i];
      CHECK(sum.get() == expected);
      backend.sums().sum_over_images(from.tensor().sample_range(0, 0), sum.floats());
      CHECK(sum.get() == expected);
    }
  }
}

}  // namespace lockstep::test
