// Transposition of weights and the bias of a convolution: exact results for all types and in every
// order of threads, and what a missing barrier or block does to them.

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backend/operand.h"
#include "kernels/emulated_gpu.h"
#include "kernels/operations/launchers.h"

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
  const EmulatedGpu emulated(1);  // eight blocks
  const gpu::Transposition one{t.shape, from.tensor().data, to.tensor().data};
  gpu::transpose(emulated, {&one, 1}, t.from, t.to, t.accumulate);
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
  const Matrices shapes[] = {{1, 1, 1},    {3, 16, 9},  {3, 9, 16},  {2, 48, 9},   {1, 33, 32},
                             {2, 70, 65},  {70, 3, 2},  {0, 4, 4},   {2, 0, 3},    {1, 300, 1},
                             {1, 1, 300},  {2, 130, 9}, {2, 9, 130}, {1, 32, 129}, {1, 33, 34},
                             {1, 9000, 1}, {1, 1, 9000}};
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
  const Transposition t{{12, 40, 33}};  // a block takes one or two tiles
  {
    const WithOptions broken({.seed = 2, .skipped_barrier = 0});
    bool unset = false;
    for (const float value : transposed(t)) unset = unset || std::isnan(value);
    CHECK(unset);
  }
  CHECK(is_seen({.skipped_barrier = 1}, expected(t), [&] { return transposed(t); }));
  CHECK(is_seen({.skipped_block = 5}, expected(t), [&] { return transposed(t); }));
}

TEST_CASE("many transpositions at once are as one after the other, in as few launches as can be") {
  constexpr std::size_t kMost = 64;
  const auto cpu = cpu_backend();
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{5}, kMost + 3}) {
    CAPTURE(count);
    std::vector<Transposition> ones;
    std::vector<Operand> from, to;
    std::vector<gpu::Transposition> all;
    for (std::size_t i = 0; i < count; ++i) {
      const auto extent = [&](std::size_t step) {
        return static_cast<std::int64_t>(i * step % 37 + (i % 9 != 4));
      };
      const Transposition& one = ones.emplace_back(Transposition{
          {1 + extent(5) % 4, extent(11), extent(7)}, false, DType::kFloat32, DType::kBFloat16});
      from.emplace_back(*cpu, one.flat(), integers(one.flat(), 1));
      to.emplace_back(TypedBackend{*cpu, one.to}, one.flat(), integers(one.flat(), 2));
      all.push_back({one.shape, from.back().tensor().data, to.back().tensor().data});
    }
    const EmulatedGpu emulated;
    const std::int64_t before = emulation::launches();
    gpu::transpose(emulated, all, DType::kFloat32, DType::kBFloat16, false);
    CHECK(emulation::launches() - before == static_cast<std::int64_t>((count + kMost - 1) / kMost));
    for (std::size_t i = 0; i < count; ++i) CHECK(to[i].get() == expected(ones[i]));
  }
}

TEST_CASE("random operands are spread over [-1, 1) and a function of seed and place") {
  const auto cpu = cpu_backend();
  const Shape shape{3, 1001};
  const auto filled = [&](std::uint64_t seed, int multiprocessors) {
    const EmulatedGpu emulated(multiprocessors);
    const Operand tensor(*cpu, shape);
    gpu::fill_random(emulated, tensor.tensor(), seed);
    return tensor.get();
  };
  const Values values = filled(3, 1);
  CHECK(filled(3, 5) == values);
  CHECK(filled(4, 5) != values);
  double sum = 0, squares = 0;
  for (const float value : values) {
    CHECK(value >= -1);
    CHECK(value < 1);
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const auto count = static_cast<double>(values.size());
  CHECK(std::abs(sum / count) < 0.05);
  CHECK(squares / count == doctest::Approx(1.0 / 3).epsilon(0.05));
}

TEST_CASE("a transposition refuses matrices of more than 31 bits") {
  const gpu::Transposition huge{{2, std::int64_t{1} << 20, std::int64_t{1} << 20}};
  CHECK_THROWS_AS(gpu::transpose({}, {&huge, 1}, DType::kFloat32, DType::kFloat32, false), Error);
}

struct Bias {
  Shape shape;
  Margins margins;
};

const std::vector<Bias> kBiases = {{{1, 1}, {}},         {{7, 11}, {}},    {{513, 3}, {}},
                                   {{1025, 33}, {0, 7}}, {{1536, 32}, {}}, {{600, 70}, {1, 0}},
                                   {{70, 16}, {8, 0}},   {{0, 5}, {}},     {{9000, 11}, {}},
                                   {{3000, 8}, {}},      {{40, 530}, {}}};

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
  const EmulatedGpu emulated;
  const Operand grad_y({*cpu, dtype}, b.shape, eighths(b.shape, 1), b.margins);
  Values gradient = eighths({b.shape.channels()}, 2);
  gpu::bias_gradient(emulated, grad_y.tensor(), gradient.data());
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

TEST_CASE("a bias's gradient of any numbers is rounded once, the same in every order") {
  const auto cpu = cpu_backend();
  const Shape shape{5000, 11};
  const Values values = random_values(shape, 5);
  const Operand grad_y(*cpu, shape, values);
  std::vector<double> wanted(11);
  for (std::size_t i = 0; i < values.size(); ++i) wanted[i % 11] += static_cast<double>(values[i]);
  const auto run = [&](const gpu::Context& emulated) {
    Values gradient(11, 0.0F);
    gpu::bias_gradient(emulated, grad_y.tensor(), gradient.data());
    return gradient;
  };
  const Values gradient = run(EmulatedGpu());
  for (std::size_t c = 0; c < 11; ++c) {
    CHECK(gradient[c] == static_cast<float>(wanted[c]));
  }
  check_in_all_orders(gradient, run);
}

TEST_CASE("a bias's gradient without a barrier, or without a block, is wrong") {
  const Bias b{{1025, 33}, {}};
  const Values right = bias_gradient(b, DType::kFloat32);
  const auto run = [&] { return bias_gradient(b, DType::kFloat32); };
  const int barriers = emulation::barriers_of_last_launch();
  CHECK(barriers == 6 + 2 + 1);  // 51 row lanes, the last block's ticket, its groups
  for (int barrier = 0; barrier < barriers; ++barrier) {
    // Before a block is counted: needs a rare order among so many threads, see reduce_test.cpp.
    if (barrier == barriers - 3) continue;
    CAPTURE(barrier);
    CHECK(is_seen({.skipped_barrier = barrier}, right, run));
  }
  for (const int block : {0, 1, 11}) CHECK(is_seen({.skipped_block = block}, right, run));
}

}  // namespace
}  // namespace lockstep::test
