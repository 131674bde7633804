// Pooling kernels against the CPU's backend, bit for bit.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "backend/operand.h"
#include "kernels/emulated_gpu.h"

namespace lockstep::test {
namespace {

struct PoolKernelCase {
  PoolGeometry geometry;
  Shape input;
  Margins margins;
};

std::vector<PoolKernelCase> pool_kernel_cases() {
  return {
      {{}, {2, 6, 8, 8}, {}},
      {{}, {2, 7, 5, 8}, {4, 8}},
      {{}, {2, 4, 7, 5}, {1, 0}},
      {{3, 3, 2, 2, 1, 1}, {2, 9, 8, 12}, {}},
      {{3, 3, 1, 1, 0, 0}, {1, 6, 5, 7}, {0, 3}},
      {{3, 2, 4, 3, 0, 0}, {1, 11, 10, 4}, {}},
      {{12, 11, 6, 5, 3, 2}, {1, 20, 19, 40}, {}},  // as large as a block's
      {{35, 5, 35, 5, 0, 0}, {2, 35, 5, 3}, {2, 2}},
  };
}

struct HostWinners {
  std::vector<std::uint8_t> values;
  Tensor tensor;
  explicit HostWinners(const Shape& shape)
      : values(static_cast<std::size_t>(shape.elements()), 99),
        tensor(values.data(), shape, DType::kUInt8) {}
};

struct PoolResults {
  Values max, max_gradient, average, average_gradient;
  std::vector<std::uint8_t> winners;
  friend bool operator==(const PoolResults&, const PoolResults&) = default;
};

struct Operands {
  Operand x, y, grad_x;
  HostWinners winners;
  Operands(Backend& backend, const PoolKernelCase& c, const Values& values)
      : x(backend, c.input, values, c.margins),
        y(backend, c.geometry.output_shape(c.input), c.margins),
        grad_x(backend, c.input, random_values(c.input, 2), c.margins),
        winners(y.tensor().shape) {}
  bool margins_untouched() const { return y.margins_untouched() && grad_x.margins_untouched(); }
};

bool is_small(const PoolKernelCase& c) { return c.geometry.kernel_h * c.geometry.kernel_w <= 255; }

PoolResults pooled_on_cpu(const PoolKernelCase& c, bool accumulate) {
  const auto cpu = cpu_backend();
  const Operands o(*cpu, c, values_with_ties(c.input, 1));
  const Tensor x = o.x.tensor(), y = o.y.tensor(), grad_x = o.grad_x.tensor();
  PoolResults r;
  if (is_small(c)) {
    cpu->pooling().max_pool_forward(c.geometry, x, y, o.winners.tensor);
    r.max = o.y.get();
    cpu->pooling().max_pool_backward(c.geometry, o.winners.tensor, y, grad_x, accumulate);
    r.max_gradient = o.grad_x.get();
  }
  cpu->pooling().avg_pool_forward(c.geometry, x, y);
  r.average = o.y.get();
  cpu->pooling().avg_pool_backward(c.geometry, y, grad_x, accumulate);
  r.average_gradient = o.grad_x.get();
  r.winners = o.winners.values;
  return r;
}

PoolResults pooled_on_gpu(Backend& emulated, const PoolKernelCase& c, bool accumulate) {
  const auto cpu = cpu_backend();
  const Operands o(*cpu, c, values_with_ties(c.input, 1));
  const Tensor x = o.x.tensor(), y = o.y.tensor(), grad_x = o.grad_x.tensor();
  PoolResults r;
  if (is_small(c)) {
    emulated.pooling().max_pool_forward(c.geometry, x, y, o.winners.tensor);
    r.max = o.y.get();
    emulated.pooling().max_pool_backward(c.geometry, o.winners.tensor, y, grad_x, accumulate);
    r.max_gradient = o.grad_x.get();
  }
  emulated.pooling().avg_pool_forward(c.geometry, x, y);
  r.average = o.y.get();
  emulated.pooling().avg_pool_backward(c.geometry, y, grad_x, accumulate);
  r.average_gradient = o.grad_x.get();
  r.winners = o.winners.values;
  CHECK(o.margins_untouched());
  return r;
}

TEST_CASE("pooling has the CPU's bits and winners") {
  for (const PoolKernelCase& c : pool_kernel_cases()) {
    for (const bool accumulate : {false, true}) {
      CAPTURE(to_string(c.input));
      CAPTURE(c.geometry.kernel_h);
      CAPTURE(accumulate);
      check_in_all_orders(pooled_on_cpu(c, accumulate), [&](Backend& emulated) {
        return pooled_on_gpu(emulated, c, accumulate);
      });
    }
  }
}

TEST_CASE("adaptive pooling has the CPU's bits") {
  struct Bins {
    Shape input;
    std::int64_t height, width;
  };
  const auto cpu = cpu_backend();
  for (const Bins& c : std::vector<Bins>{{{2, 35, 5, 40}, 1, 1},
                                         {{2, 11, 13, 8}, 4, 5},
                                         {{1, 40, 39, 5}, 3, 2},
                                         {{2, 3, 4, 12}, 5, 7}}) {
    CAPTURE(to_string(c.input));
    const Shape out{c.input.batch(), c.height, c.width, c.input.channels()};
    for (const bool accumulate : {false, true}) {
      const auto run = [&](const auto& forward, const auto& backward) {
        const Operand x(*cpu, c.input, random_values(c.input, 1)), y(*cpu, out);
        const Operand grad_y(*cpu, out, random_values(out, 2));
        const Operand grad_x(*cpu, c.input, random_values(c.input, 3));
        forward(x.tensor(), y.tensor());
        backward(grad_y.tensor(), grad_x.tensor(), accumulate);
        return std::pair{y.get(), grad_x.get()};
      };
      const auto expected =
          run([&](const auto&... a) { cpu->pooling().adaptive_avg_pool_forward(a...); },
              [&](const auto&... a) { cpu->pooling().adaptive_avg_pool_backward(a...); });
      check_in_all_orders(expected, [&](Backend& emulated) {
        return run([&](const auto&... a) { emulated.pooling().adaptive_avg_pool_forward(a...); },
                   [&](const auto&... a) { emulated.pooling().adaptive_avg_pool_backward(a...); });
      });
    }
  }
}

TEST_CASE("NaN wins as on the CPU") {
  const auto cpu = cpu_backend();
  EmulatedGpu emulated;
  for (const Shape& shape : {Shape{1, 4, 6, 4}, Shape{1, 4, 6, 3}}) {
    const PoolKernelCase c{{}, shape, {}};
    Values values = values_with_ties(shape, 1);
    for (std::size_t i = 0; i < values.size(); i += 5) {
      values[i] = std::numeric_limits<float>::quiet_NaN();
    }
    const Operands a(*cpu, c, values), b(*cpu, c, values);
    cpu->pooling().max_pool_forward(c.geometry, a.x.tensor(), a.y.tensor(), a.winners.tensor);
    emulated.pooling().max_pool_forward(c.geometry, b.x.tensor(), b.y.tensor(), b.winners.tensor);
    CHECK(a.winners.values == b.winners.values);
  }
}

TEST_CASE("a missing barrier or block of the average over large windows is seen") {
  const PoolKernelCase c{{20, 7, 20, 7, 0, 0}, {3, 20, 7, 33}, {}};
  const auto cpu = cpu_backend();
  EmulatedGpu emulated(1);
  Operands o(*cpu, c, random_values(c.input, 3));
  const auto run = [&] {
    o.y.set(Values(99, 0.0F));
    emulated.pooling().avg_pool_forward(c.geometry, o.x.tensor(), o.y.tensor());
    return o.y.get();
  };
  const Values expected = run();
  const int barriers = emulation::barriers_of_last_launch();
  CHECK(barriers == 2 * 2 * 2);  // two results of a block, in two rounds each
  for (int barrier = 0; barrier < barriers; ++barrier) {
    CAPTURE(barrier);
    CHECK(is_seen({.skipped_barrier = barrier}, expected, run) == (barrier + 1 < barriers));
  }
  CHECK(is_seen({.skipped_block = 3}, expected, run));
}

}  // namespace
}  // namespace lockstep::test
