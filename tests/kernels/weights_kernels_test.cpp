// Transposition of weights and the bias of a convolution: exact results for all types and in every
// order of threads, and what a missing barrier or block does to them.

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backend/operand.h"
#include "kernels/emulated_context.h"
#include "kernels/operations/bias.h"
#include "kernels/operations/weights.h"

namespace lockstep::test {
namespace {

using gpu::Matrices;

/// Integers that every type can hold, sums of two of them included.
Values integers(const Shape& shape, std::uint32_t seed) {
  std::mt19937 generator(seed);
  Values values(static_cast<std::size_t>(shape.elements()));
  for (float& value : values) value = static_cast<float>(generator() % 255) - 127;
  return values;
}

struct Transposition {
  Matrices shape;
  bool accumulate = false;
  DType from = DType::kFloat32, to = DType::kFloat32;

  Shape flat() const { return {1, shape.batch * shape.rows * shape.columns}; }
};

Values transposed(const Transposition& t) {
  const auto cpu = cpu_backend();
  const Operand from({*cpu, t.from}, t.flat(), integers(t.flat(), 1));
  const Operand to({*cpu, t.to}, t.flat(), integers(t.flat(), 2));
  gpu::transpose({}, t.shape, from.tensor(), to.tensor(), t.accumulate);
  return to.get();
}

Values expected(const Transposition& t) {
  const Values from = integers(t.flat(), 1);
  Values to = integers(t.flat(), 2);
  const Matrices& s = t.shape;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t r = 0; r < s.rows; ++r) {
      for (std::int64_t c = 0; c < s.columns; ++c) {
        float& target = to[static_cast<std::size_t>((b * s.columns + c) * s.rows + r)];
        const float value = from[static_cast<std::size_t>((b * s.rows + r) * s.columns + c)];
        target = t.accumulate ? target + value : value;
      }
    }
  }
  return to;
}

TEST_CASE("transposition of every shape, in every order of threads") {
  const Matrices shapes[] = {{1, 1, 1},   {3, 16, 9}, {3, 9, 16}, {2, 48, 9}, {1, 33, 32},
                             {2, 70, 65}, {70, 3, 2}, {0, 4, 4},  {2, 0, 3}};
  for (const Matrices& shape : shapes) {
    CAPTURE(shape.batch);
    CAPTURE(shape.rows);
    CAPTURE(shape.columns);
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const WithOptions order({.seed = seed});
      for (const bool accumulate : {false, true}) {
        const Transposition t{shape, accumulate};
        CHECK(transposed(t) == expected(t));
      }
    }
  }
}

TEST_CASE("transposition between all types") {
  for (const DType from : kGpuTypes) {
    for (const DType to : kGpuTypes) {
      for (const bool accumulate : {false, true}) {
        CAPTURE(std::string(to_string(from)));
        CAPTURE(std::string(to_string(to)));
        const Transposition t{{2, 40, 33}, accumulate, from, to};
        CHECK(transposed(t) == expected(t));
      }
    }
  }
}

TEST_CASE("a transposition without its first barrier, or without a block, is wrong") {
  const Transposition t{{2, 40, 33}};
  {
    const WithOptions broken({.seed = 2, .skipped_barrier = 0});
    bool unset = false;
    for (const float value : transposed(t)) unset = unset || std::isnan(value);
    CHECK(unset);
  }
  const WithOptions broken({.skipped_block = 5});
  CHECK(transposed(t) != expected(t));
}

TEST_CASE("a transposition refuses tensors that are not the matrices") {
  const auto cpu = cpu_backend();
  const Operand six(*cpu, {1, 6}), seven(*cpu, {1, 7}), range(*cpu, {2, 3}, Margins{1, 0});
  const Matrices shape{1, 2, 3};
  CHECK_THROWS_AS(gpu::transpose({}, shape, six.tensor(), seven.tensor(), false), Error);
  CHECK_THROWS_AS(gpu::transpose({}, shape, range.tensor(), six.tensor(), false), Error);
}

struct Bias {
  Shape shape;
  Margins margins;
};

const std::vector<Bias> kBiases = {{{1, 1}, {}},         {{7, 11}, {}},    {{513, 3}, {}},
                                   {{1025, 33}, {0, 7}}, {{1536, 32}, {}}, {{600, 70}, {1, 0}},
                                   {{70, 16}, {8, 0}},   {{0, 5}, {}}};

/// Eighths, whose sums of columns are exact.
Values eighths(const Shape& shape, std::uint32_t seed) {
  Values values = integers(shape, seed);
  for (float& value : values) value /= 8;
  return values;
}

TEST_CASE("a bias is added to every row and to nothing else") {
  const auto cpu = cpu_backend();
  for (const DType dtype : kGpuTypes) {
    for (const Bias& b : kBiases) {
      CAPTURE(std::string(to_string(dtype)));
      CAPTURE(to_string(b.shape));
      const TypedBackend on(*cpu, dtype);
      const Values before = eighths(b.shape, 1), bias = random_values({b.shape.channels()}, 2);
      Values wanted = before;
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += bias[i % bias.size()];
      const Operand y(on, b.shape, before, b.margins);
      gpu::add_bias({}, bias.data(), y.tensor());
      CHECK(y.get() == on.stored(wanted));
      CHECK(y.margins_untouched());
    }
  }
}

Values bias_gradient(const Bias& b, DType dtype) {
  const auto cpu = cpu_backend();
  const EmulatedContext context;
  const Operand grad_y({*cpu, dtype}, b.shape, eighths(b.shape, 1), b.margins);
  Values gradient = eighths({b.shape.channels()}, 2);
  gpu::bias_gradient(context, grad_y.tensor(), gradient.data());
  return gradient;
}

TEST_CASE("a bias's gradient adds the column sums, the same bits in every order of threads") {
  for (const Bias& b : kBiases) {
    CAPTURE(to_string(b.shape));
    const Values grad_y = eighths(b.shape, 1);
    Values wanted = eighths({b.shape.channels()}, 2);
    std::vector<double> sums(wanted.size());
    for (std::size_t i = 0; i < grad_y.size(); ++i) {
      sums[i % sums.size()] += static_cast<double>(grad_y[i]);
    }
    for (std::size_t c = 0; c < sums.size(); ++c) wanted[c] += static_cast<float>(sums[c]);
    for (const DType dtype : kGpuTypes) {
      for (std::uint64_t seed = 0; seed < 2; ++seed) {
        const WithOptions order({.seed = seed});
        CHECK(bias_gradient(b, dtype) == wanted);
      }
    }
  }
}

TEST_CASE("a bias's gradient without a barrier, or without a block, is wrong") {
  const Bias b{{1025, 33}, {}};
  const Values right = bias_gradient(b, DType::kFloat32);
  {
    const WithOptions broken({.seed = 1, .skipped_barrier = 0});
    CHECK(bias_gradient(b, DType::kFloat32) != right);
  }
  const WithOptions broken({.skipped_block = 1});
  CHECK(bias_gradient(b, DType::kFloat32) != right);
}

}  // namespace
}  // namespace lockstep::test
