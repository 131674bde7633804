// Convolutions against loops in double, for every kind of geometry, and properties that hold
// exactly.

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <string>

#include "backend/cpu/conv/engines.h"
#include "backend/operand.h"
#include "support/backends.h"
#include "support/with_variable.h"

namespace lockstep::test {
namespace {

struct ConvCase {
  const char* name;
  ConvGeometry geometry;
  Shape input;
  Margins margins;  // of every tensor
};

ConvGeometry square_conv(std::int64_t in, std::int64_t out, std::int64_t kernel,
                         std::int64_t padding = 0) {
  ConvGeometry g;
  g.in_channels = in;
  g.out_channels = out;
  g.kernel_h = g.kernel_w = kernel;
  g.padding_h = g.padding_w = padding;
  return g;
}

std::vector<ConvCase> conv_cases() {
  ConvGeometry strided = square_conv(5, 7, 3, 1);
  strided.stride_h = strided.stride_w = 2;
  ConvGeometry dilated = square_conv(8, 8, 3, 2);
  dilated.dilation_h = dilated.dilation_w = 2;
  ConvGeometry uneven{4, 6, 3, 5, 2, 1, 0, 2, 1, 2, 1};
  ConvGeometry grouped = square_conv(8, 12, 3, 1);
  grouped.groups = 4;
  ConvGeometry fours = square_conv(32, 32, 3, 1);
  fours.groups = 8;
  ConvGeometry depthwise = square_conv(16, 16, 3, 1);
  depthwise.groups = 16;
  return {
      {"3x3 of the network", square_conv(16, 32, 3, 1), {2, 12, 20, 16}, {}},
      {"3x3 after a concatenation", square_conv(48, 16, 3, 1), {1, 11, 13, 48}, {}},
      {"3x3 of a channel range", square_conv(16, 16, 3, 1), {2, 9, 10, 16}, {16, 8}},
      {"3x3 with channels that fill no vector", square_conv(7, 11, 3, 1), {2, 7, 9, 7}, {1, 2}},
      {"3x3 without padding", square_conv(16, 16, 3), {2, 8, 9, 16}, {}},
      {"3x3 with padding 2", square_conv(16, 16, 3, 2), {1, 6, 5, 16}, {}},
      {"3x3 of a single pixel", square_conv(16, 24, 3, 1), {3, 1, 1, 16}, {}},
      {"3x3 of a single row", square_conv(32, 16, 3, 1), {2, 1, 17, 32}, {}},
      {"first layer", square_conv(3, 16, 3, 1), {2, 17, 15, 3}, {}},
      {"one channel", square_conv(1, 1, 3, 1), {2, 5, 6, 1}, {}},
      {"one channel in", square_conv(1, 16, 3, 1), {2, 6, 5, 1}, {0, 3}},
      {"1x1 head", square_conv(16, 11, 1), {2, 9, 7, 16}, {}},
      {"1x1 of channel ranges", square_conv(16, 32, 1), {2, 5, 5, 16}, {3, 1}},
      {"5x5", square_conv(6, 8, 5, 2), {2, 9, 8, 6}, {}},
      {"stride 2", strided, {2, 11, 12, 5}, {}},
      {"dilation 2", dilated, {2, 10, 9, 8}, {}},
      {"uneven everything", uneven, {2, 13, 15, 4}, {}},
      {"groups", grouped, {2, 7, 8, 8}, {}},
      {"groups of four channels", fours, {2, 7, 11, 32}, {4, 1}},
      {"depthwise", depthwise, {2, 7, 8, 16}, {}},
  };
}

/// Calls visit(x index, weight index, y index) for every product of the convolution.
template <typename Visit>
void for_each_product(const ConvGeometry& g, const Shape& in, const Visit& visit) {
  const Shape out = g.output_shape(in);
  const std::int64_t in_group = g.in_channels / g.groups, out_group = g.out_channels / g.groups;
  for (std::int64_t pixel = 0; pixel < out.rows(); ++pixel) {
    const std::int64_t n = pixel / (out.height() * out.width());
    const std::int64_t oy = pixel / out.width() % out.height(), ox = pixel % out.width();
    for (std::int64_t tap = 0; tap < g.kernel_h * g.kernel_w; ++tap) {
      const std::int64_t iy = oy * g.stride_h - g.padding_h + tap / g.kernel_w * g.dilation_h;
      const std::int64_t ix = ox * g.stride_w - g.padding_w + tap % g.kernel_w * g.dilation_w;
      if (iy < 0 || iy >= in.height() || ix < 0 || ix >= in.width()) continue;
      const std::int64_t x_row = (n * in.height() + iy) * in.width() + ix;
      for (std::int64_t o = 0; o < g.out_channels; ++o) {
        for (std::int64_t i = 0; i < in_group; ++i) {
          visit(static_cast<std::size_t>(x_row * g.in_channels + o / out_group * in_group + i),
                static_cast<std::size_t>((o * in_group + i) * g.kernel_h * g.kernel_w + tap),
                static_cast<std::size_t>(pixel * g.out_channels + o));
        }
      }
    }
  }
}

/// Everything one case needs, with random values: those of activations are of `dtype`, the others
/// fp32.
struct Setup {
  Shape in, out, weight_shape;
  Values x, weight, bias, grad_y;

  explicit Setup(const ConvCase& c, DType dtype = DType::kFloat32)
      : in(c.input),
        out(c.geometry.output_shape(c.input)),
        weight_shape(c.geometry.weight_shape()),
        x(stored_values(dtype, random_values(in, 1))),
        weight(random_values(weight_shape, 2, 0.2F)),
        bias(random_values({c.geometry.out_channels}, 3)),
        grad_y(stored_values(dtype, random_values(out, 4))) {}
};

constexpr double kTolerance = 2e-5;

/// For what is rounded to the type of activations once more, before a bias or what is there is
/// added.
double tolerance_of_sums(DType dtype) {
  return dtype == DType::kFloat32 ? kTolerance : kTolerance + spacing(dtype, 1);
}

/// The weights that a convolution multiplies by: GPUs round them to the type of activations.
Values used_weights(const TypedBackend& on, const Values& weight) {
  return on->device().kind == DeviceKind::kCpu ? weight : on.stored(weight);
}

void check_forward(const TypedBackend& on, const ConvCase& c, const Setup& s, bool with_bias) {
  Doubles expected(s.grad_y.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] = with_bias ? static_cast<double>(s.bias[i % s.bias.size()]) : 0.0;
  }
  const Values used = used_weights(on, s.weight);
  for_each_product(c.geometry, s.in, [&](std::size_t x, std::size_t w, std::size_t y) {
    expected[y] += static_cast<double>(s.x[x]) * static_cast<double>(used[w]);
  });
  const Operand x(on, s.in, s.x, c.margins);
  const Operand weight(on.backend, s.weight_shape, s.weight);
  const Operand bias(on.backend, {1, c.geometry.out_channels}, s.bias);
  const Operand y(on, s.out, c.margins);
  on->convolutions().conv2d_forward(c.geometry, x.tensor(), weight.floats(),
                                    with_bias ? bias.floats() : nullptr, y.tensor());
  CHECK(relative_error(y, expected) < (with_bias ? tolerance_of_sums(on.dtype) : kTolerance));
  CHECK(y.margins_untouched());
}

void check_backward_data(const TypedBackend& on, const ConvCase& c, const Setup& s) {
  Doubles expected(s.x.size());
  const Values used = used_weights(on, s.weight);
  for_each_product(c.geometry, s.in, [&](std::size_t x, std::size_t w, std::size_t y) {
    expected[x] += static_cast<double>(s.grad_y[y]) * static_cast<double>(used[w]);
  });
  const Operand grad_y(on, s.out, s.grad_y, c.margins);
  const Operand weight(on.backend, s.weight_shape, s.weight);
  const Operand grad_x(on, s.in, c.margins);
  on->convolutions().conv2d_backward_data(c.geometry, grad_y.tensor(), weight.floats(),
                                          grad_x.tensor());
  CHECK(relative_error(grad_x, expected) < kTolerance);
  CHECK(grad_x.margins_untouched());
}

void check_backward_weights(const TypedBackend& on, const ConvCase& c, const Setup& s) {
  // Both gradients are fp32, and added to what is there.
  Doubles expected = widen(s.weight);
  for_each_product(c.geometry, s.in, [&](std::size_t x, std::size_t w, std::size_t y) {
    expected[w] += static_cast<double>(s.grad_y[y]) * static_cast<double>(s.x[x]);
  });
  Doubles expected_bias = widen(s.bias);
  for (std::size_t i = 0; i < s.grad_y.size(); ++i) {
    expected_bias[i % s.bias.size()] += static_cast<double>(s.grad_y[i]);
  }
  const Operand x(on, s.in, s.x, c.margins);
  const Operand grad_y(on, s.out, s.grad_y, c.margins);
  const Operand grad_weight(on.backend, s.weight_shape, s.weight);
  const Operand grad_bias(on.backend, {1, c.geometry.out_channels}, s.bias);
  on->convolutions().conv2d_backward_weights(c.geometry, x.tensor(), grad_y.tensor(),
                                             grad_weight.floats(), grad_bias.floats());
  CHECK(relative_error(grad_weight, expected) < tolerance_of_sums(on.dtype));
  CHECK(relative_error(grad_bias, expected_bias) < kTolerance);
  // And what is there is not rounded.
  const Values before = grad_weight.get();
  const Operand zero(on, s.in, Values(s.x.size(), 0.0F));
  on->convolutions().conv2d_backward_weights(c.geometry, zero.tensor(), grad_y.tensor(),
                                             grad_weight.floats(), nullptr);
  CHECK(grad_weight.get() == before);
}

TEST_CASE("convolutions and their gradients match loops in double") {
  for_each_type([](const TypedBackend& on) {
    for (const ConvCase& c : conv_cases()) {
      CAPTURE(std::string(c.name));
      Setup s(c, on.dtype);
      // A CPU may round them, or not.
      if (on->device().kind == DeviceKind::kCpu) s.weight = on.stored(s.weight);
      on->convolutions().prepare_conv2d(c.geometry, c.input, on.dtype, true, true);
      check_forward(on, c, s, false);
      check_forward(on, c, s, true);
      check_backward_data(on, c, s);
      check_backward_weights(on, c, s);
    }
  });
}

// Factors that TF32 holds exactly: its result is then that of fp32, and what else it gets wrong
// shows.
TEST_CASE("convolutions in TF32 match loops in double where no factor needs rounding") {
  if (cuda_device_count() == 0) {
    MESSAGE("SKIPPED: no CUDA device answers");
    return;
  }
  const auto backend = make_backend({DeviceKind::kCuda, 0, 0}, 1, {.tf32 = true});
  const TypedBackend on{*backend, DType::kFloat32};
  for (const ConvCase& c : conv_cases()) {
    CAPTURE(std::string(c.name));
    Setup s(c, DType::kBFloat16);
    s.weight = stored_values(DType::kBFloat16, s.weight);
    on->convolutions().prepare_conv2d(c.geometry, c.input, on.dtype, true, true);
    check_forward(on, c, s, false);
    check_backward_data(on, c, s);
    check_backward_weights(on, c, s);
  }
}

TEST_CASE("a convolution's operands have one type, and one that the backend has") {
  for_each_type([](const TypedBackend& on) {
    const ConvGeometry g = square_conv(4, 4, 3, 1);
    const Shape shape{1, 4, 4, 4};
    const Operand weight(on.backend, g.weight_shape());
    CHECK_THROWS_AS(on->convolutions().prepare_conv2d(g, shape, DType::kUInt8, true, true), Error);
    for (const DType other : kGpuTypes) {
      if (other == on.dtype) continue;
      const Operand x(on, shape), y({on.backend, other}, shape);
      CHECK_THROWS_AS(
          on->convolutions().conv2d_forward(g, x.tensor(), weight.floats(), nullptr, y.tensor()),
          Error);
      CHECK_THROWS_AS(
          on->convolutions().conv2d_backward_data(g, y.tensor(), weight.floats(), x.tensor()),
          Error);
      CHECK_THROWS_AS(on->convolutions().conv2d_backward_weights(g, x.tensor(), y.tensor(),
                                                                 weight.floats(), nullptr),
                      Error);
    }
  });
}

// Images so large that they are converted one by one on one thread, four by four on three.
TEST_CASE("convolutions of bf16 have fp32's bits, rounded, however many images meet at once") {
  const WithVariable exactly("LOCKSTEP_CONVOLUTION", "winograd8");  // by no products of bf16
  const ConvGeometry g = square_conv(16, 16, 3, 1);
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    const auto backend = cpu(threads);
    const TypedBackend narrow(*backend, DType::kBFloat16), wide(*backend);
    const ConvCase c{"", g, {7, 120, 128, 16}, {8, 0}};
    const Setup s(c, DType::kBFloat16);
    const Operand weight(wide, s.weight_shape, s.weight);
    const auto results = [&](const TypedBackend& on) {
      const Operand x(on, s.in, s.x, c.margins), grad_y(on, s.out, s.grad_y, c.margins);
      const Operand y(on, s.out, c.margins), grad_x(on, s.in, c.margins);
      const Operand grad_weight(wide, s.weight_shape, Values(s.weight.size(), 0.0F));
      on->convolutions().prepare_conv2d(g, s.in, on.dtype, true, true);
      const std::size_t prepared = on->allocated_bytes();
      on->convolutions().conv2d_forward(g, x.tensor(), weight.floats(), nullptr, y.tensor());
      on->convolutions().conv2d_backward_data(g, grad_y.tensor(), weight.floats(), grad_x.tensor());
      on->convolutions().conv2d_backward_weights(g, x.tensor(), grad_y.tensor(),
                                                 grad_weight.floats(), nullptr);
      if (on.dtype == DType::kBFloat16) CHECK(on->allocated_bytes() == prepared);
      CHECK(y.margins_untouched());
      CHECK(grad_x.margins_untouched());
      return std::array{y.get(), grad_x.get(), grad_weight.get()};
    };
    const auto rounded = results(narrow);
    const auto exact = results(wide);
    CHECK(rounded[0] == narrow.stored(exact[0]));
    CHECK(rounded[1] == narrow.stored(exact[1]));
    CHECK(rounded[2] == exact[2]);
  }
}

TEST_CASE("every implementation takes tensors of any row stride") {
  const auto backend = cpu(2);
  for (const ConvEngine& engine : conv_engines()) {
    for (const ConvCase& c : conv_cases()) {
      if (!engine.can_compute(c.geometry, ConvPass::kForward)) continue;
      CAPTURE(std::string(c.name));
      CAPTURE(std::string(engine.name));
      Setup s(c);
      if (engine.tensors == DType::kBFloat16) {
        for (Values* values : {&s.x, &s.weight, &s.grad_y})
          *values = stored_values(DType::kBFloat16, *values);
      }
      const ConvGeometry& g = c.geometry;
      const Operand x(*backend, s.in, s.x, c.margins), grad_y(*backend, s.out, s.grad_y, c.margins);
      const Operand weight(*backend, s.weight_shape, s.weight),
          bias(*backend, {1, g.out_channels}, s.bias);
      const Operand y(*backend, s.out, c.margins), grad_x(*backend, s.in, c.margins);
      const TypedBackend on(*backend, engine.tensors);
      const Operand x1(on, s.in, s.x, c.margins), grad_y1(on, s.out, s.grad_y, c.margins);
      const Operand y1(on, s.out, c.margins), grad_x1(on, s.in, c.margins);
      const Operand grad_w(*backend, s.weight_shape, s.weight),
          grad_w1(*backend, s.weight_shape, s.weight);
      backend->convolutions().conv2d_forward(g, x.tensor(), weight.floats(), bias.floats(),
                                             y.tensor());
      backend->convolutions().conv2d_backward_data(g, grad_y.tensor(), weight.floats(),
                                                   grad_x.tensor());
      backend->convolutions().conv2d_backward_weights(g, x.tensor(), grad_y.tensor(),
                                                      grad_w.floats(), nullptr);
      const auto alone = engine.make(g, s.in, 2);
      std::size_t bytes = 0;
      for (const ConvPass pass :
           {ConvPass::kForward, ConvPass::kBackwardData, ConvPass::kBackwardWeights}) {
        alone->prepare(pass);
        bytes = std::max(bytes, alone->scratch_bytes(pass, true));
      }
      const Storage scratch = backend->allocate(bytes);
      alone->forward(x1.tensor(), weight.floats(), bias.floats(), y1.tensor(), scratch.data());
      alone->backward_data(grad_y1.tensor(), weight.floats(), grad_x1.tensor(), scratch.data());
      alone->backward_weights(x1.tensor(), grad_y1.tensor(), grad_w1.floats(), scratch.data());
      CHECK(relative_error(y1, widen(y.get())) < kTolerance);
      CHECK(relative_error(grad_x1, widen(grad_x.get())) < kTolerance);
      CHECK(relative_error(grad_w1.get(), widen(grad_w.get())) < kTolerance);
      CHECK(y1.margins_untouched());
      CHECK(grad_x1.margins_untouched());
    }
  }
}

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

TEST_CASE("the gradients are the adjoints of the convolution at the network's sizes") {
  // <conv(x, w), g> = <x, conv_data(g, w)> = <w, conv_weights(x, g)>
  const auto backend = cpu(2);
  const ConvCase c{"", square_conv(48, 16, 3, 1), {2, 44, 60, 48}, {}};
  const Setup s(c);
  const Operand x(*backend, s.in, s.x), weight(*backend, s.weight_shape, s.weight);
  const Operand grad_y(*backend, s.out, s.grad_y), y(*backend, s.out), grad_x(*backend, s.in);
  const Operand grad_weight(*backend, s.weight_shape, Values(s.weight.size(), 0.0F));
  backend->convolutions().conv2d_forward(c.geometry, x.tensor(), weight.floats(), nullptr,
                                         y.tensor());
  backend->convolutions().conv2d_backward_data(c.geometry, grad_y.tensor(), weight.floats(),
                                               grad_x.tensor());
  backend->convolutions().conv2d_backward_weights(c.geometry, x.tensor(), grad_y.tensor(),
                                                  grad_weight.floats(), nullptr);
  const double scale = std::sqrt(dot(s.grad_y, s.grad_y) * dot(y.get(), y.get()));
  CHECK(std::abs(dot(y.get(), s.grad_y) - dot(s.x, grad_x.get())) < 1e-6 * scale);
  CHECK(std::abs(dot(y.get(), s.grad_y) - dot(s.weight, grad_weight.get())) < 1e-6 * scale);
}

TEST_CASE("a sample's result does not depend on the batch around it") {
  const auto backend = cpu(2);
  const ConvGeometry g = square_conv(16, 16, 3, 1);
  const Shape shape{5, 13, 14, 16};
  const Operand x(*backend, shape, random_values(shape, 7)), y(*backend, shape),
      part(*backend, shape);
  const Operand weight(*backend, g.weight_shape(), random_values(g.weight_shape(), 8));
  backend->convolutions().conv2d_forward(g, x.tensor(), weight.floats(), nullptr, y.tensor());
  backend->convolutions().conv2d_forward(g, x.tensor().sample_range(0, 2), weight.floats(), nullptr,
                                         part.tensor().sample_range(0, 2));
  backend->convolutions().conv2d_forward(g, x.tensor().sample_range(2, 3), weight.floats(), nullptr,
                                         part.tensor().sample_range(2, 3));
  CHECK(y.get() == part.get());
}

TEST_CASE("repeated gradients are bitwise equal") {
  const auto backend = cpu(3);
  const ConvGeometry g = square_conv(16, 32, 3, 1);
  const Shape in{3, 21, 18, 16};
  const Shape out = g.output_shape(in);
  const Operand x(*backend, in, random_values(in, 9)),
      grad_y(*backend, out, random_values(out, 10));
  const Operand grad_weight(*backend, g.weight_shape());
  Values first;
  for (int repeat = 0; repeat < 5; ++repeat) {
    CAPTURE(repeat);
    backend->fill(grad_weight.tensor(), 0.0F);
    backend->convolutions().conv2d_backward_weights(g, x.tensor(), grad_y.tensor(),
                                                    grad_weight.floats(), nullptr);
    if (repeat == 0) first = grad_weight.get();
    CHECK(grad_weight.get() == first);
  }
}

TEST_CASE("preparing twice or running after preparation takes no memory") {
  const auto backend = cpu(2);
  const ConvGeometry g = square_conv(16, 16, 3, 1);
  const Shape shape{2, 12, 12, 16};
  backend->convolutions().prepare_conv2d(g, shape, DType::kFloat32, true, true);
  const Operand x(*backend, shape, random_values(shape, 1)), y(*backend, shape);
  const Operand weight(*backend, g.weight_shape(), random_values(g.weight_shape(), 8));
  const std::size_t prepared = backend->allocated_bytes();
  backend->convolutions().prepare_conv2d(g, shape, DType::kFloat32, true, true);
  backend->convolutions().conv2d_forward(g, x.tensor(), weight.floats(), nullptr, y.tensor());
  backend->convolutions().conv2d_backward_data(g, x.tensor(), weight.floats(), y.tensor());
  backend->convolutions().conv2d_backward_weights(g, x.tensor(), y.tensor(), weight.floats(),
                                                  nullptr);
  backend->convolutions().conv2d_forward(g, x.tensor().sample_range(1, 1), weight.floats(), nullptr,
                                         y.tensor().sample_range(1, 1));  // a smaller batch
  CHECK(backend->allocated_bytes() == prepared);
}

TEST_CASE("an empty batch reads and writes nothing") {
  const auto backend = cpu(2);
  const ConvGeometry g = square_conv(16, 16, 3, 1);
  const Tensor empty(nullptr, {0, 8, 8, 16});
  backend->convolutions().prepare_conv2d(g, empty.shape, DType::kFloat32, true, true);
  Values gradient(static_cast<std::size_t>(g.weight_elements()), 1.0F);
  const Values before = gradient;
  backend->convolutions().conv2d_forward(g, empty, nullptr, nullptr, empty);
  backend->convolutions().conv2d_backward_data(g, empty, nullptr, empty);
  backend->convolutions().conv2d_backward_weights(g, empty, empty, gradient.data(), nullptr);
  CHECK(gradient == before);
}

TEST_CASE("a wrong output shape is an error") {
  const auto backend = cpu(1);
  const ConvGeometry g = square_conv(4, 4, 3);
  const Operand x(*backend, {1, 6, 6, 4}), y(*backend, {1, 6, 6, 4});
  const Operand weight(*backend, g.weight_shape());
  CHECK_THROWS_AS(
      backend->convolutions().conv2d_forward(g, x.tensor(), weight.floats(), nullptr, y.tensor()),
      Error);
}

}  // namespace
}  // namespace lockstep::test
