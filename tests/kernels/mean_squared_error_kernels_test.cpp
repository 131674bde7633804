// The mean squared error of the kernel against the CPU's: the gradient bit for bit, and the same
// bits in every order of threads and on every size of GPU.

#include <doctest/doctest.h>

#include "backend/operand.h"
#include "kernels/emulated_gpu.h"
#include "kernels/loss_results.h"

namespace lockstep::test {
namespace {

template <typename Operation>
LossResults squared_error_results(const Shape& shape, Margins margins, const Operation& operation) {
  const auto cpu = cpu_backend();
  const Operand output(*cpu, shape, random_values(shape, 1, 3.0F), margins);
  const Operand target(*cpu, shape, random_values(shape, 2)), gradient(*cpu, shape, margins);
  LossResults r;
  operation(MeanSquaredError{output.tensor(), target.tensor(), 123.0, gradient.tensor(), &r.loss});
  r.gradient = gradient.get();
  CHECK(gradient.margins_untouched());
  return r;
}

TEST_CASE("mean squared error agrees with the CPU and has the same bits in every order") {
  const auto cpu = cpu_backend();
  const Margins beside{4, 4};
  for (const Shape& shape :
       {Shape{3, 20, 31, 11}, Shape{2, 40, 30, 16}, Shape{5, 7}, Shape{2, 3, 5, 7, 4}}) {
    for (const Margins& margins : {Margins{}, beside}) {
      CAPTURE(to_string(shape));
      const LossResults expected = squared_error_results(
          shape, margins, [&](const MeanSquaredError& a) { cpu->losses().mean_squared_error(a); });
      const auto on_gpu = [&](Backend& emulated) {
        return squared_error_results(shape, margins, [&](const MeanSquaredError& a) {
          emulated.losses().mean_squared_error(a);
        });
      };
      EmulatedGpu some;
      const LossResults result = on_gpu(some);
      CHECK(result.loss == doctest::Approx(expected.loss).epsilon(1e-12));
      CHECK(result.gradient == expected.gradient);
      check_in_all_orders(result, on_gpu);
    }
  }
}

TEST_CASE("missing barriers and blocks of the mean squared error are seen") {
  const auto run = [&] {
    EmulatedGpu emulated(1);
    return squared_error_results({2, 20, 50, 5}, {}, [&](const MeanSquaredError& a) {
      emulated.losses().mean_squared_error(a);
    });
  };
  const LossResults expected = run();
  // The block's sum, the ticket and the last block's sum; the first of each pair only guards what
  // was read before from what is written next.
  for (const int barrier : {1, 3, 5}) {
    CAPTURE(barrier);
    CHECK(is_seen({.skipped_barrier = barrier}, expected, run));
  }
  CHECK(is_seen({.skipped_block = 1}, expected, run));
}

}  // namespace
}  // namespace lockstep::test
