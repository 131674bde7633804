// Sums over samples and slots of the kernels against the CPU's, bit for bit.

#include <doctest/doctest.h>

#include "backend/operand.h"
#include "kernels/emulated_gpu.h"

namespace lockstep::test {
namespace {

/// The slots of two parts, and what a part then gets.
template <typename Sum, typename Broadcast>
std::vector<Values> sums_of(const Shape& shape, const Sum& sum, const Broadcast& broadcast) {
  const auto cpu = cpu_backend();
  const std::int64_t elements = shape.rows_per_sample() * shape.channels();
  const Operand a(*cpu, shape, random_values(shape, 1)), b(*cpu, shape, random_values(shape, 2));
  const Operand of_a(*cpu, {2, elements}), of_b(*cpu, {2, elements});
  const Operand y(*cpu, shape, random_values(shape, 3));
  sum(a.tensor(), of_a.floats());
  sum(b.tensor(), of_b.floats());
  const StatSlot slots[] = {{shape.batch(), of_a.floats()}, {shape.batch(), of_b.floats()}};
  broadcast(std::span<const StatSlot>(slots), y.tensor(), true);
  return {of_a.get(), of_b.get(), y.get()};
}

TEST_CASE("sums over samples and slots have the CPU's bits") {
  const auto cpu = cpu_backend();
  for (const Shape& shape : {Shape{5, 7}, Shape{3, 4, 5, 12}, Shape{2, 1, 1, 300}}) {
    CAPTURE(to_string(shape));
    const auto expected = sums_of(
        shape, [&](const auto&... a) { cpu->sums().sum_over_batch(a...); },
        [&](const auto&... a) { cpu->sums().broadcast_sum(a...); });
    check_in_all_orders(expected, [&](Backend& emulated) {
      return sums_of(
          shape, [&](const auto&... a) { emulated.sums().sum_over_batch(a...); },
          [&](const auto&... a) { emulated.sums().broadcast_sum(a...); });
    });
  }
}

}  // namespace
}  // namespace lockstep::test
