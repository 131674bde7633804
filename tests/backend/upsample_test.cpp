// Bilinear interpolation against the definition in double and values that PyTorch gives, and its
// gradient.

#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "backend/cpu/stream_store.h"
#include "backend/operand.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

struct UpsampleCase {
  const char* name;
  std::int64_t in_height, in_width, out_height, out_width, channels;
  Margins margins;
};

std::vector<UpsampleCase> upsample_cases() {
  return {
      {"x2 of the network", 6, 8, 12, 16, 32, {}},
      {"x2 into a concatenation", 5, 7, 10, 14, 32, {16, 0}},
      {"x2 of one pixel", 1, 1, 2, 2, 3, {}},
      {"one row, one column", 1, 5, 4, 5, 2, {}},
      {"to one pixel", 6, 7, 1, 1, 4, {}},
      {"the same size", 5, 4, 5, 4, 9, {1, 2}},
      {"not an integer ratio", 5, 7, 13, 11, 8, {3, 5}},
      {"down", 11, 13, 4, 5, 6, {3, 1}},
      {"down in one axis, up in the other", 9, 3, 4, 10, 1, {}},
      {"x8", 3, 2, 24, 16, 5, {}},
      {"x2 and one more", 6, 5, 13, 11, 16, {8, 1}},
  };
}

/// How output position o weighs input position i, by the definition (in double).
double bilinear_weight(std::int64_t o, std::int64_t i, std::int64_t input, std::int64_t output,
                       bool align) {
  double position = 0;
  if (align) {
    position =
        output > 1 ? static_cast<double>(o * (input - 1)) / static_cast<double>(output - 1) : 0;
  } else {
    position =
        (static_cast<double>(o) + 0.5) * static_cast<double>(input) / static_cast<double>(output) -
        0.5;
  }
  position = std::min(std::max(position, 0.0), static_cast<double>(input - 1));
  return std::max(0.0, 1.0 - std::abs(position - static_cast<double>(i)));
}

/// Calls visit(x index, y index, weight) for every pair that has a weight.
template <typename Visit>
void for_each_weight(const Shape& in, const Shape& out, bool align, const Visit& visit) {
  const std::int64_t channels = in.channels();
  for (std::int64_t pixel = 0; pixel < out.rows(); ++pixel) {
    const std::int64_t n = pixel / (out.height() * out.width());
    for (std::int64_t source = 0; source < in.height() * in.width(); ++source) {
      const double w =
          bilinear_weight(pixel / out.width() % out.height(), source / in.width(), in.height(),
                          out.height(), align) *
          bilinear_weight(pixel % out.width(), source % in.width(), in.width(), out.width(), align);
      if (w == 0) continue;
      for (std::int64_t c = 0; c < channels; ++c) {
        visit((n * in.height() * in.width() + source) * channels + c, pixel * channels + c, w);
      }
    }
  }
}

void check_upsample(const TypedBackend& on, const UpsampleCase& c, bool align) {
  const Shape in{2, c.in_height, c.in_width, c.channels},
      out{2, c.out_height, c.out_width, c.channels};
  const Values x_values = on.random(in, 1), gradient = on.random(out, 2);
  const Values before = on.random(in, 3);
  Doubles expected(gradient.size());
  for_each_weight(in, out, align, [&](std::int64_t x, std::int64_t y, double w) {
    expected[y] += w * static_cast<double>(x_values[x]);
  });
  const Operand x(on, in, x_values, c.margins), y(on, out, c.margins);
  on->pooling().upsample_bilinear_forward(x.tensor(), y.tensor(), align);
  CHECK(relative_error(y, expected) < 2e-6);
  CHECK(y.margins_untouched());

  for (const bool accumulate : {false, true}) {
    Doubles expected_x = accumulate ? widen(before) : Doubles(before.size());
    for_each_weight(in, out, align, [&](std::int64_t i, std::int64_t o, double w) {
      expected_x[i] += w * static_cast<double>(gradient[o]);
    });
    const Operand grad_y(on, out, gradient, c.margins), grad_x(on, in, before, c.margins);
    on->pooling().upsample_bilinear_backward(grad_y.tensor(), grad_x.tensor(), align, accumulate);
    CHECK(relative_error(grad_x, expected_x) < 4e-6);
    CHECK(grad_x.margins_untouched());
  }
}

TEST_CASE("interpolation and its gradient match the definition") {
  for_each_type([](const TypedBackend& on) {
    for (const UpsampleCase& c : upsample_cases()) {
      for (const bool align : {false, true}) {
        CAPTURE(std::string(c.name));
        CAPTURE(align);
        check_upsample(on, c, align);
      }
    }
  });
}

TEST_CASE("values of torch.nn.functional.interpolate") {
  const auto backend = cpu(1);
  const Operand x(*backend, {1, 2, 2, 1}, {1, 2, 3, 4}), y(*backend, {1, 4, 4, 1});
  backend->pooling().upsample_bilinear_forward(x.tensor(), y.tensor(), false);
  CHECK(y.get() == Values{1, 1.25F, 1.75F, 2, 1.5F, 1.75F, 2.25F, 2.5F,  //
                          2.5F, 2.75F, 3.25F, 3.5F, 3, 3.25F, 3.75F, 4});
  backend->pooling().upsample_bilinear_forward(x.tensor(), y.tensor(), true);
  const Doubles aligned{1,       4.0 / 3, 5.0 / 3, 2,        5.0 / 3, 2,        7.0 / 3,  8.0 / 3,
                        7.0 / 3, 8.0 / 3, 3,       10.0 / 3, 3,       10.0 / 3, 11.0 / 3, 4};
  CHECK(relative_error(y.get(), aligned) < 1e-6);
}

TEST_CASE("the bits do not depend on the number of threads") {
  const Shape in{2, 24, 30, 32}, out{2, 48, 60, 32};
  std::vector<Values> results;
  for (const int threads : {1, 4}) {
    const auto backend = cpu(threads);
    const Operand x(*backend, in, random_values(in, 4)), y(*backend, out), grad_x(*backend, in);
    backend->pooling().upsample_bilinear_forward(x.tensor(), y.tensor(), false);
    backend->pooling().upsample_bilinear_backward(y.tensor(), grad_x.tensor(), false, false);
    results.push_back(y.get());
    results.push_back(grad_x.get());
  }
  CHECK(results[0] == results[2]);
  CHECK(results[1] == results[3]);
}

TEST_CASE("outputs that are written past the caches have the bits of those that are not") {
  // A batch that is large enough, and its images alone, which are not.
  const auto backend = cpu(2);
  const Shape in{9, 32, 64, 32}, out{9, 64, 128, 32};
  const Shape image{1, 32, 64, 32}, image_out{1, 64, 128, 32};
  const Margins margins{16, 16};
  const auto values_of = [](const Values& all, const Shape& one, std::int64_t n) {
    return Values(all.begin() + n * one.elements(), all.begin() + (n + 1) * one.elements());
  };
  const Values x_values = random_values(in, 5), gradient = random_values(out, 6);
  const Operand x(*backend, in, x_values), y(*backend, out, margins);
  const Operand grad_y(*backend, out, gradient), grad_x(*backend, in, margins);
  REQUIRE(streams(y.tensor()));
  REQUIRE(streams(grad_x.tensor()));
  backend->pooling().upsample_bilinear_forward(x.tensor(), y.tensor(), false);
  for (const bool accumulate : {false, true}) {
    backend->pooling().upsample_bilinear_backward(grad_y.tensor(), grad_x.tensor(), false,
                                                  accumulate);
  }
  CHECK(y.margins_untouched());
  CHECK(grad_x.margins_untouched());
  for (std::int64_t n = 0; n < in.batch(); ++n) {
    const Operand one(*backend, image, values_of(x_values, image, n)), one_y(*backend, image_out);
    const Operand one_grad_y(*backend, image_out, values_of(gradient, image_out, n));
    const Operand one_grad_x(*backend, image);
    REQUIRE(!streams(one_y.tensor()));
    REQUIRE(!streams(one_grad_x.tensor()));
    backend->pooling().upsample_bilinear_forward(one.tensor(), one_y.tensor(), false);
    for (const bool accumulate : {false, true}) {
      backend->pooling().upsample_bilinear_backward(one_grad_y.tensor(), one_grad_x.tensor(), false,
                                                    accumulate);
    }
    CHECK(values_of(y.get(), image_out, n) == one_y.get());
    CHECK(values_of(grad_x.get(), image, n) == one_grad_x.get());
  }
}

TEST_CASE("an empty batch reads and writes nothing; other channels are an error") {
  const auto backend = cpu(2);
  const Tensor empty(nullptr, {0, 4, 4, 3}), empty_y(nullptr, {0, 8, 8, 3});
  backend->pooling().upsample_bilinear_forward(empty, empty_y, false);
  backend->pooling().upsample_bilinear_backward(empty_y, empty, false, false);
  const Operand x(*backend, {1, 4, 4, 3}), y(*backend, {1, 8, 8, 2});
  CHECK_THROWS_AS(backend->pooling().upsample_bilinear_forward(x.tensor(), y.tensor(), false),
                  Error);
}

}  // namespace
}  // namespace lockstep::test
