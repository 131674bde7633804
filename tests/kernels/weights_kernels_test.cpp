// Transposition of weights and the bias of a convolution: exact results in every order of threads,
// and what a missing barrier or block does to them.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/operations/bias.h"
#include "kernels/operations/weights.h"
#include "kernels/primitives/launch.h"

namespace lockstep {
namespace {

using gpu::Matrices;

/// Options for the life time of the object.
struct WithOptions {
  explicit WithOptions(const emulation::Options& options) { emulation::options() = options; }
  ~WithOptions() { emulation::options() = {}; }
  WithOptions(const WithOptions&) = delete;
  WithOptions& operator=(const WithOptions&) = delete;
};

/// A context whose scratch memory is new, to the byte, at every call.
struct Scratch {
  gpu::Context context;
  std::vector<double> memory;

  Scratch() {
    context.scratch = [this](std::size_t bytes) {
      memory.assign(bytes / sizeof(double), std::numeric_limits<double>::quiet_NaN());
      memory.shrink_to_fit();
      return static_cast<void*>(memory.data());
    };
  }
};

std::vector<float> counted(std::int64_t size, float first) {
  std::vector<float> values(static_cast<std::size_t>(size));
  std::iota(values.begin(), values.end(), first);
  return values;
}

/// Transposes 1, 2, 3, ... onto what counts from 1000.
std::vector<float> transposed(const Matrices& shape, bool accumulate) {
  const std::int64_t size = shape.batch * shape.rows * shape.columns;
  const std::vector<float> from = counted(size, 1);
  std::vector<float> to = counted(size, 1000);
  gpu::transpose({}, shape, from.data(), to.data(), accumulate);
  return to;
}

std::vector<float> expected(const Matrices& s, bool accumulate) {
  std::vector<float> to = counted(s.batch * s.rows * s.columns, 1000);
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t r = 0; r < s.rows; ++r) {
      for (std::int64_t c = 0; c < s.columns; ++c) {
        float& target = to[static_cast<std::size_t>((b * s.columns + c) * s.rows + r)];
        const auto value = static_cast<float>((b * s.rows + r) * s.columns + c + 1);
        target = accumulate ? target + value : value;
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
        CHECK(transposed(shape, accumulate) == expected(shape, accumulate));
      }
    }
  }
}

TEST_CASE("a transposition without its first barrier, or without a block, is wrong") {
  const Matrices shape{2, 40, 33};
  {
    const WithOptions broken({.seed = 2, .skipped_barrier = 0});
    const std::vector<float> result = transposed(shape, false);
    bool unset = false;
    for (const float value : result) unset = unset || std::isnan(value);
    CHECK(unset);
  }
  const WithOptions broken({.skipped_block = 5});
  CHECK(transposed(shape, false) != expected(shape, false));
}

struct Bias {
  std::int64_t rows, channels, stride;
};

constexpr Bias kBiases[] = {{1, 1, 1},      {7, 11, 11},   {513, 3, 3}, {1025, 33, 40},
                            {1536, 32, 32}, {600, 70, 71}, {0, 5, 5}};

/// A tensor with a channel range's stride in a block that ends with its last element.
struct Strided {
  std::vector<float> memory;
  Tensor tensor;

  explicit Strided(const Bias& b)
      : memory(counted(b.rows == 0 ? 0 : (b.rows - 1) * b.stride + b.channels, -40)) {
    for (float& value : memory) value = std::fmod(value, 97.0F) / 8;
    tensor = Tensor(memory.data(), {b.rows, b.channels});
    tensor.row_stride = b.stride;
  }
};

TEST_CASE("a bias is added to every row and to nothing else") {
  for (const Bias& b : kBiases) {
    Strided y(b);
    std::vector<float> wanted = y.memory;
    const std::vector<float> bias = counted(b.channels, 0.5F);
    for (std::int64_t r = 0; r < b.rows; ++r) {
      for (std::int64_t c = 0; c < b.channels; ++c) {
        wanted[static_cast<std::size_t>(r * b.stride + c)] += bias[static_cast<std::size_t>(c)];
      }
    }
    gpu::add_bias({}, bias.data(), y.tensor);
    CHECK(y.memory == wanted);
  }
}

std::vector<float> bias_gradient(const Bias& b) {
  const Strided grad_y(b);
  Scratch scratch;
  std::vector<float> gradient = counted(b.channels, 0.25F);
  gpu::bias_gradient(scratch.context, grad_y.tensor, gradient.data());
  return gradient;
}

TEST_CASE("a bias's gradient adds the column sums, the same bits in every order of threads") {
  for (const Bias& b : kBiases) {
    CAPTURE(b.rows);
    CAPTURE(b.channels);
    const Strided grad_y(b);
    std::vector<float> wanted = counted(b.channels, 0.25F);
    for (std::int64_t c = 0; c < b.channels; ++c) {
      double sum = 0;  // of multiples of 1/8: exact
      for (std::int64_t r = 0; r < b.rows; ++r) {
        sum += static_cast<double>(grad_y.memory[static_cast<std::size_t>(r * b.stride + c)]);
      }
      wanted[static_cast<std::size_t>(c)] += static_cast<float>(sum);
    }
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const WithOptions order({.seed = seed});
      CHECK(bias_gradient(b) == wanted);
    }
  }
}

TEST_CASE("a bias's gradient without a barrier, or without a block, is wrong") {
  const Bias b{1025, 33, 33};
  const std::vector<float> right = bias_gradient(b);
  {
    const WithOptions broken({.seed = 1, .skipped_barrier = 0});
    CHECK(bias_gradient(b) != right);
  }
  const WithOptions broken({.skipped_block = 1});
  CHECK(bias_gradient(b) != right);
}

}  // namespace
}  // namespace lockstep
