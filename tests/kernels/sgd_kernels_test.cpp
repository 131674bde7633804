// The optimizer's kernel against the CPU's, bit for bit, and sums of squares.

#include <doctest/doctest.h>

#include "backend/operand.h"
#include "kernels/emulated_context.h"
#include "kernels/operations/sgd.h"

namespace lockstep::test {
namespace {

struct Case {
  std::int64_t elements, begin, end;
  std::size_t ranks;
  std::size_t misaligned;  // floats by which all memory is off 16 bytes
};

std::vector<Case> cases() {
  return {{64, 0, 64, 1, 0}, {3001, 3, 2999, 3, 0}, {3001, 3, 2999, 3, 1}, {10, 5, 7, 2, 0},
          {9, 1, 9, 2, 0},   {40, 13, 13, 2, 0},    {700, 2, 698, 64, 0}};
}

constexpr float kLr = 0.013F, kMomentum = 0.9F, kWeightDecay = 1.7e-4F;

/// Everything that update(shard) leaves behind.
template <typename Update>
std::vector<Values> state_after(const Case& c, const Update& update) {
  const Shape shape{1, c.elements + 4};
  std::vector<Values> values{random_values(shape, 1)};  // velocity, then gradients, then weights
  for (std::size_t rank = 0; rank < c.ranks; ++rank) {
    values.push_back(random_values(shape, static_cast<std::uint32_t>(10 + rank)));
  }
  values.resize(1 + 2 * c.ranks, random_values(shape, 2));
  const auto cpu = cpu_backend();
  std::vector<std::unique_ptr<Operand>> memory;
  std::vector<const float*> grads;
  std::vector<float*> weights;
  for (const Values& v : values) {
    memory.push_back(std::make_unique<Operand>(*cpu, shape, v));
    float* data = memory.back()->floats() + c.misaligned;
    if (memory.size() > 1 + c.ranks) {
      weights.push_back(data);
    } else if (memory.size() > 1) {
      grads.push_back(data);
    }
  }
  update(SgdShard{grads,
                  weights,
                  memory[0]->floats() + c.misaligned,
                  c.begin,
                  c.end,
                  kLr,
                  kMomentum,
                  kWeightDecay,
                  {}});
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = memory[i]->get();
  return values;
}

TEST_CASE("SGD has the CPU's bits, whatever the range and alignment") {
  const auto cpu = cpu_backend();
  for (const Case& c : cases()) {
    CAPTURE(c.elements);
    CAPTURE(c.ranks);
    const auto expected = state_after(c, [&](const SgdShard& shard) { cpu->sgd_update(shard); });
    check_in_all_orders(expected, [&](const gpu::Context& context) {
      return state_after(c, [&](const SgdShard& shard) { gpu::sgd_update(context, shard); });
    });
  }
}

TEST_CASE("SGD refuses more ranks than a kernel's arguments hold") {
  const EmulatedContext context;
  const std::vector<const float*> grads(gpu::kMaxRanks + 1);
  const std::vector<float*> weights(gpu::kMaxRanks + 1);
  CHECK_THROWS_AS(gpu::sgd_update(context, {grads, weights, nullptr, 0, 1, 0.0F, 0, 0, {}}), Error);
}

TEST_CASE("a sum of squares is accurate, is added, and depends on nothing but the values") {
  for (const std::size_t elements : {1, 3, 1000, 8192, 40001}) {
    CAPTURE(elements);
    Values values = random_values({1, static_cast<std::int64_t>(elements)}, 4, 100.0F);
    double expected = 7;
    for (const float value : values) {
      expected += static_cast<double>(value) * static_cast<double>(value);
    }
    const auto sum_at = [&](const gpu::Context& context, std::size_t offset) {
      struct alignas(16) Line {
        float values[4];
      };
      std::vector<Line> memory(elements / 4 + 2);
      float* data = memory[0].values + offset;
      std::copy(values.begin(), values.end(), data);
      double result = 7;
      gpu::sum_of_squares(context, data, static_cast<std::int64_t>(elements), &result);
      return result;
    };
    const EmulatedContext some;
    const double result = sum_at(some, 0);
    CHECK(result == doctest::Approx(expected).epsilon(1e-13));
    CHECK(sum_at(some, 1) == result);
    check_in_all_orders(result, [&](const gpu::Context& context) { return sum_at(context, 0); });
  }
  const EmulatedContext context;
  double untouched = 7;
  gpu::sum_of_squares(context, nullptr, 0, &untouched);
  CHECK(untouched == 7);
}

TEST_CASE("missing barriers and blocks of a sum of squares are seen") {
  const Values values = random_values({1, 100000}, 5);
  const auto run = [&] {
    const EmulatedContext context(1);  // eight blocks for thirteen chunks
    double result = 0;
    gpu::sum_of_squares(context, values.data(), 100000, &result);
    return result;
  };
  const double expected = run();
  // Of two chunks, of the ticket and of the last block's sum. Each first one of a pair only guards
  // what was read before from what is written next, many switches of threads later.
  for (const int barrier : {1, 3, 5, 7}) {
    CAPTURE(barrier);
    CHECK(is_seen({.skipped_barrier = barrier}, expected, run));
  }
  CHECK(is_seen({.skipped_block = 1}, expected, run));
}

}  // namespace
}  // namespace lockstep::test
