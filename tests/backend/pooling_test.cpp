// Pooling against loops over windows in double, and the rules that a fast path may break: equal
// values, padding, NaN, odd extents, windows that overlap or skip.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "backend/operand.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

struct PoolCase {
  const char* name;
  PoolGeometry geometry;
  Shape input;
  Margins margins;
};

std::vector<PoolCase> pool_cases() {
  return {
      {"2x2 of the network", {}, {2, 8, 12, 16}, {}},
      {"2x2 of a channel range", {}, {2, 6, 8, 16}, {16, 3}},
      {"2x2 of odd extents", {}, {2, 7, 9, 5}, {}},
      {"2x2 of one channel", {}, {3, 4, 6, 1}, {1, 0}},
      {"2x2 of two pixels a side", {}, {2, 2, 2, 33}, {}},
      {"3x3, stride 2, padding 1", {3, 3, 2, 2, 1, 1}, {2, 9, 10, 8}, {0, 4}},
      {"3x3, stride 1", {3, 3, 1, 1, 0, 0}, {2, 6, 5, 7}, {}},
      {"3x2, stride 4x3: gaps", {3, 2, 4, 3, 0, 0}, {1, 11, 10, 4}, {}},
      {"2x4, padding 1x2", {2, 4, 1, 3, 1, 2}, {2, 5, 7, 3}, {}},
      {"the whole image", {7, 9, 7, 9, 0, 0}, {3, 7, 9, 40}, {2, 2}},
      {"one pixel", {1, 1, 1, 1, 0, 0}, {2, 3, 4, 6}, {}},
      {"a large window", {13, 12, 9, 8, 2, 3}, {2, 17, 19, 16}, {3, 5}},
  };
}

std::int64_t offset(const Shape& s, std::int64_t n, std::int64_t y, std::int64_t x,
                    std::int64_t c) {
  return ((n * s.height() + y) * s.width() + x) * s.channels() + c;
}

/// Calls visit(y index, x index or -1 in the padding, window position) for every position of every
/// window.
template <typename Visit>
void for_each_position(const PoolGeometry& g, const Shape& in, const Visit& visit) {
  const Shape out = g.output_shape(in);
  for (std::int64_t i = 0; i < out.elements(); ++i) {
    const std::int64_t c = i % out.channels(), pixel = i / out.channels();
    const std::int64_t ox = pixel % out.width(), oy = pixel / out.width() % out.height();
    const std::int64_t n = pixel / (out.width() * out.height());
    for (std::int64_t k = 0; k < g.kernel_h * g.kernel_w; ++k) {
      const std::int64_t iy = oy * g.stride_h - g.padding_h + k / g.kernel_w;
      const std::int64_t ix = ox * g.stride_w - g.padding_w + k % g.kernel_w;
      const bool inside = iy >= 0 && iy < in.height() && ix >= 0 && ix < in.width();
      visit(i, inside ? offset(in, n, iy, ix, c) : -1, k);
    }
  }
}

/// Winners live in device memory.
struct Winners {
  Storage storage;
  Tensor tensor;
  Winners(Backend& backend, const Shape& shape)
      : storage(backend.allocate(static_cast<std::size_t>(shape.elements()))),
        tensor(storage.data(), shape, DType::kUInt8) {}
  std::vector<std::uint8_t> get(Backend& backend) const {
    std::vector<std::uint8_t> values(static_cast<std::size_t>(tensor.shape.elements()));
    backend.download(values.data(), tensor);
    backend.synchronize();
    return values;
  }
};

struct MaxReference {
  Values y;
  std::vector<std::uint8_t> winners;
};

MaxReference max_reference(const PoolCase& c, const Values& x) {
  const auto count = static_cast<std::size_t>(c.geometry.output_shape(c.input).elements());
  MaxReference reference{Values(count, -std::numeric_limits<float>::infinity()),
                         std::vector<std::uint8_t>(count, 255)};
  for_each_position(c.geometry, c.input, [&](std::int64_t y, std::int64_t source, std::int64_t k) {
    if (source < 0 || x[source] <= reference.y[y]) return;
    reference.y[y] = x[source];
    reference.winners[y] = static_cast<std::uint8_t>(k);
  });
  return reference;
}

void check_max_pool(const TypedBackend& on, const PoolCase& c) {
  const Shape out = c.geometry.output_shape(c.input);
  const Values x_values = values_with_ties(c.input, 1);
  const MaxReference reference = max_reference(c, x_values);
  const Operand x(on, c.input, x_values, c.margins), y(on, out, c.margins);
  const Winners winners(on.backend, out);
  on->pooling().max_pool_forward(c.geometry, x.tensor(), y.tensor(), winners.tensor);
  CHECK(y.get() == reference.y);
  CHECK(winners.get(on.backend) == reference.winners);
  CHECK(y.margins_untouched());

  const Values gradient = on.random(out, 2), before = on.random(c.input, 3);
  for (const bool accumulate : {false, true}) {
    Doubles expected = accumulate ? widen(before) : Doubles(before.size());
    for_each_position(c.geometry, c.input,
                      [&](std::int64_t i, std::int64_t source, std::int64_t k) {
                        if (source >= 0 && reference.winners[i] == k)
                          expected[source] += static_cast<double>(gradient[i]);
                      });
    const Operand grad_y(on, out, gradient, c.margins), grad_x(on, c.input, before, c.margins);
    on->pooling().max_pool_backward(c.geometry, winners.tensor, grad_y.tensor(), grad_x.tensor(),
                                    accumulate);
    CHECK(relative_error(grad_x, expected) < 1e-6);
    CHECK(grad_x.margins_untouched());
  }
}

void check_avg_pool(const TypedBackend& on, const PoolCase& c) {
  const Shape out = c.geometry.output_shape(c.input);
  const double share = 1.0 / static_cast<double>(c.geometry.kernel_h * c.geometry.kernel_w);
  const Values x_values = on.random(c.input, 4), gradient = on.random(out, 5);
  const Values before = on.random(c.input, 6);
  Doubles expected(gradient.size());
  for_each_position(c.geometry, c.input, [&](std::int64_t y, std::int64_t source, std::int64_t) {
    if (source >= 0) expected[y] += share * static_cast<double>(x_values[source]);
  });
  const Operand x(on, c.input, x_values, c.margins), y(on, out, c.margins);
  on->pooling().avg_pool_forward(c.geometry, x.tensor(), y.tensor());
  CHECK(relative_error(y, expected) < 1e-6);
  CHECK(y.margins_untouched());

  for (const bool accumulate : {false, true}) {
    Doubles expected_x = accumulate ? widen(before) : Doubles(before.size());
    for_each_position(c.geometry, c.input, [&](std::int64_t i, std::int64_t source, std::int64_t) {
      if (source >= 0) expected_x[source] += share * static_cast<double>(gradient[i]);
    });
    const Operand grad_y(on, out, gradient, c.margins), grad_x(on, c.input, before, c.margins);
    on->pooling().avg_pool_backward(c.geometry, grad_y.tensor(), grad_x.tensor(), accumulate);
    CHECK(relative_error(grad_x, expected_x) < 1e-6);
    CHECK(grad_x.margins_untouched());
  }
}

struct AdaptiveCase {
  Shape input;
  std::int64_t height, width;
  Margins margins;
};

/// Calls visit(index in y, index in x, share) for every position of every bin: from
/// floor(o * in / out) to ceil((o + 1) * in / out).
template <typename Visit>
void for_each_bin_position(const Shape& in, const Shape& out, const Visit& visit) {
  const auto bin = [](std::int64_t o, std::int64_t input, std::int64_t output) {
    std::pair<std::int64_t, std::int64_t> range;
    while ((range.first + 1) * output <= o * input) ++range.first;
    while (range.second * output < (o + 1) * input) ++range.second;
    return range;
  };
  for (std::int64_t i = 0; i < out.elements(); ++i) {
    const std::int64_t c = i % out.channels(), pixel = i / out.channels();
    const auto rows = bin(pixel / out.width() % out.height(), in.height(), out.height());
    const auto columns = bin(pixel % out.width(), in.width(), out.width());
    const std::int64_t n = pixel / (out.width() * out.height());
    const double share =
        1.0 / static_cast<double>((rows.second - rows.first) * (columns.second - columns.first));
    for (std::int64_t y = rows.first; y < rows.second; ++y) {
      for (std::int64_t x = columns.first; x < columns.second; ++x) {
        visit(i, offset(in, n, y, x, c), share);
      }
    }
  }
}

void check_adaptive_pool(const TypedBackend& on, const AdaptiveCase& c) {
  const Shape out{c.input.batch(), c.height, c.width, c.input.channels()};
  const Values x_values = on.random(c.input, 4), gradient = on.random(out, 5);
  const Values before = on.random(c.input, 6);
  Doubles expected(gradient.size());
  for_each_bin_position(c.input, out, [&](std::int64_t y, std::int64_t source, double share) {
    expected[y] += share * static_cast<double>(x_values[source]);
  });
  const Operand x(on, c.input, x_values, c.margins), y(on, out, c.margins);
  on->pooling().adaptive_avg_pool_forward(x.tensor(), y.tensor());
  CHECK(relative_error(y, expected) < 1e-6);
  CHECK(y.margins_untouched());

  for (const bool accumulate : {false, true}) {
    Doubles expected_x = accumulate ? widen(before) : Doubles(before.size());
    for_each_bin_position(c.input, out, [&](std::int64_t i, std::int64_t source, double share) {
      expected_x[source] += share * static_cast<double>(gradient[i]);
    });
    const Operand grad_y(on, out, gradient, c.margins), grad_x(on, c.input, before, c.margins);
    on->pooling().adaptive_avg_pool_backward(grad_y.tensor(), grad_x.tensor(), accumulate);
    CHECK(relative_error(grad_x, expected_x) < 1e-6);
    CHECK(grad_x.margins_untouched());
  }
}

TEST_CASE("adaptive average-pooling matches a loop over bins") {
  for_each_type([](const TypedBackend& on) {
    for (const AdaptiveCase& c : std::vector<AdaptiveCase>{
             {{2, 8, 12, 16}, 1, 1, {}},      // global
             {{3, 35, 5, 40}, 1, 1, {2, 2}},  // as large as a block's
             {{2, 8, 12, 8}, 4, 3, {}},
             {{2, 11, 13, 7}, 4, 5, {}},
             {{1, 40, 39, 5}, 3, 2, {3, 5}},
             {{2, 3, 4, 8}, 5, 7, {}},  // more bins than positions
             {{2, 5, 6, 4}, 5, 6, {4, 0}},
             {{1, 1, 9, 3}, 2, 6, {}},
         }) {
      CAPTURE(to_string(c.input));
      CAPTURE(c.height);
      CAPTURE(c.width);
      check_adaptive_pool(on, c);
    }
  });
}

TEST_CASE("max-pooling matches a loop over windows, first of equals, gradients zero elsewhere") {
  for_each_type([](const TypedBackend& on) {
    for (const PoolCase& c : pool_cases()) {
      CAPTURE(std::string(c.name));
      check_max_pool(on, c);
    }
  });
}

TEST_CASE("average-pooling matches a loop over windows, padding counted") {
  for_each_type([](const TypedBackend& on) {
    for (const PoolCase& c : pool_cases()) {
      CAPTURE(std::string(c.name));
      check_avg_pool(on, c);
    }
  });
}

TEST_CASE("pooling that is large enough for several threads gives the same bits as on one") {
  const Shape in{3, 66, 64, 16};
  for (const PoolGeometry& g : {PoolGeometry{}, PoolGeometry{3, 3, 2, 2, 1, 1}}) {
    std::vector<Values> results;
    for (const int threads : {1, 4}) {
      const auto backend = cpu(threads);
      const Shape out = g.output_shape(in);
      const Operand x(*backend, in, random_values(in, 7)), y(*backend, out), grad_x(*backend, in);
      const Winners winners(*backend, out);
      backend->pooling().max_pool_forward(g, x.tensor(), y.tensor(), winners.tensor);
      backend->pooling().max_pool_backward(g, winners.tensor, y.tensor(), grad_x.tensor(), false);
      results.push_back(grad_x.get());
      backend->pooling().avg_pool_forward(g, x.tensor(), y.tensor());
      backend->pooling().avg_pool_backward(g, y.tensor(), grad_x.tensor(), false);
      results.push_back(grad_x.get());
    }
    CHECK(results[0] == results[2]);
    CHECK(results[1] == results[3]);
  }
}

TEST_CASE("padding never wins and NaN always does") {
  const auto backend = cpu(1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const PoolGeometry& g : {PoolGeometry{}, PoolGeometry{2, 2, 2, 2, 1, 1}}) {
    const Shape in{1, 4, 4, 1};
    const Shape out = g.output_shape(in);
    Values values(16, -3.0F);
    values[5] = nan;
    const Operand x(*backend, in, values), y(*backend, out);
    const Winners winners(*backend, out);
    backend->pooling().max_pool_forward(g, x.tensor(), y.tensor(), winners.tensor);
    int nans = 0;
    for (const float value : y.get()) {
      if (std::isnan(value)) {
        ++nans;
      } else {
        CHECK(value == -3.0F);
      }
    }
    CHECK(nans == 1);
  }
}

TEST_CASE("global average pooling of a large image is accurate") {
  // 0.1 summed 42240 times in a row in fp32 is off by 1e-4.
  const auto backend = cpu(2);
  const Shape in{1, 176, 240, 3};
  const Operand x(*backend, in, Values(static_cast<std::size_t>(in.elements()), 0.1F));
  const Operand y(*backend, {1, 1, 1, 3});
  backend->pooling().adaptive_avg_pool_forward(x.tensor(), y.tensor());
  for (const float value : y.get()) CHECK(value == doctest::Approx(0.1).epsilon(1e-6));
}

TEST_CASE("an empty batch reads and writes nothing; wrong shapes and windows are errors") {
  const auto backend = cpu(2);
  const Tensor empty(nullptr, {0, 8, 8, 4}), empty_y(nullptr, {0, 4, 4, 4});
  const Tensor no_winners(nullptr, empty_y.shape, DType::kUInt8);
  backend->pooling().max_pool_forward({}, empty, empty_y, no_winners);
  backend->pooling().max_pool_backward({}, no_winners, empty_y, empty, false);
  backend->pooling().avg_pool_forward({}, empty, empty_y);
  backend->pooling().avg_pool_backward({}, empty_y, empty, false);
  backend->pooling().adaptive_avg_pool_forward(empty, empty_y);
  backend->pooling().adaptive_avg_pool_backward(empty_y, empty, false);

  const Operand x(*backend, {1, 32, 32, 1}), y(*backend, {1, 15, 16, 1}),
      one(*backend, {1, 1, 1, 1});
  const Winners winners(*backend, {1, 15, 16, 1}), one_winner(*backend, {1, 1, 1, 1});
  CHECK_THROWS_AS(backend->pooling().max_pool_forward({}, x.tensor(), y.tensor(), winners.tensor),
                  Error);
  CHECK_THROWS_AS(backend->pooling().max_pool_forward({32, 32, 32, 32, 0, 0}, x.tensor(),
                                                      one.tensor(), one_winner.tensor),
                  Error);
  const Operand other(*backend, {2, 4, 4, 1});
  CHECK_THROWS_WITH_AS(backend->pooling().adaptive_avg_pool_forward(x.tensor(), other.tensor()),
                       doctest::Contains("expected images that differ in height and width alone"),
                       Error);
}

}  // namespace
}  // namespace lockstep::test
