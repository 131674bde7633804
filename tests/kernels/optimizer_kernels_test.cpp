// The optimizer's kernel against the CPU's, bit for bit, and its sum of the gradient's squares.

#include <doctest/doctest.h>

#include "backend/operand.h"
#include "kernels/emulated_gpu.h"

namespace lockstep::test {
namespace {

struct OptimizerKernelCase {
  std::int64_t elements, begin, end;
  std::size_t ranks;
  std::size_t misaligned;  // floats by which all memory is off 16 bytes
};

std::vector<OptimizerKernelCase> optimizer_kernel_cases() {
  return {{64, 0, 64, 1, 0}, {3001, 3, 2999, 3, 0}, {3001, 3, 2999, 3, 1}, {10, 5, 7, 2, 0},
          {9, 1, 9, 2, 0},   {40, 13, 13, 2, 0},    {700, 2, 698, 64, 0}};
}

constexpr float kLr = 0.013F, kWeightDecay = 1.7e-4F, kLrScale = 3;

template <typename... Types>
std::vector<Optimizer> one_of_each(const std::variant<Types...>&) {
  return {Types{}...};
}

/// Everything that update(shard) leaves behind.
template <typename Update>
std::vector<Values> state_after(const OptimizerKernelCase& c, const Optimizer& optimizer,
                                const Update& update) {
  const Shape shape{1, c.elements + 4};
  Values squares = random_values(shape, 3);
  for (float& value : squares) value *= value;
  // The state, then gradients, then weights.
  std::vector<Values> values{random_values(shape, 1), squares};
  for (std::size_t rank = 0; rank < c.ranks; ++rank) {
    values.push_back(random_values(shape, static_cast<std::uint32_t>(10 + rank)));
  }
  values.resize(2 + 2 * c.ranks, random_values(shape, 2));
  const auto cpu = cpu_backend();
  std::vector<std::unique_ptr<Operand>> memory;
  std::vector<const float*> grads;
  std::vector<float*> weights;
  for (const Values& v : values) {
    memory.push_back(std::make_unique<Operand>(*cpu, shape, v));
    float* data = memory.back()->floats() + c.misaligned;
    if (memory.size() > 2 + c.ranks) {
      weights.push_back(data);
    } else if (memory.size() > 2) {
      grads.push_back(data);
    }
  }
  const ParameterRange range{c.begin, c.end, kWeightDecay, kLrScale};
  update(OptimizerShard{
      .grads = grads,
      .weights = weights,
      .state = {memory[0]->floats() + c.misaligned, memory[1]->floats() + c.misaligned},
      .ranges = {&range, 1},
      .lr = kLr,
      .optimizer = optimizer,
      .updates = {.begun = 12'345}});
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = memory[i]->get();
  return values;
}

TEST_CASE("the optimizer has the CPU's bits, whatever the range and alignment") {
  const auto cpu = cpu_backend();
  for (const OptimizerKernelCase& c : optimizer_kernel_cases()) {
    CAPTURE(c.elements);
    CAPTURE(c.ranks);
    for (const Optimizer& optimizer : one_of_each(Optimizer{})) {
      CAPTURE(optimizer_name(optimizer));
      const auto expected = state_after(c, optimizer, [&](const OptimizerShard& shard) {
        cpu->optimizer().optimizer_update(shard);
      });
      check_in_all_orders(expected, [&](Backend& emulated) {
        return state_after(c, optimizer, [&](const OptimizerShard& shard) {
          emulated.optimizer().optimizer_update(shard);
        });
      });
    }
  }
}

TEST_CASE("a shard of up to 64 ranges is one launch") {
  constexpr std::size_t kMost = 64;
  for (const std::size_t count : {std::size_t{1}, kMost, kMost + 1, 2 * kMost + 1}) {
    CAPTURE(count);
    EmulatedGpu emulated;
    std::vector<ParameterRange> ranges;
    for (std::size_t i = 0; i < count; ++i) {
      const auto begin = static_cast<std::int64_t>(3 * i);
      ranges.push_back({begin, begin + 2, 0.0F});
    }
    const std::int64_t before = emulation::launches();
    state_after({400, 0, 400, 2, 0}, Sgd{}, [&](OptimizerShard shard) {
      shard.ranges = ranges;
      emulated.optimizer().optimizer_update(shard);
    });
    CHECK(emulation::launches() - before == static_cast<std::int64_t>((count + kMost - 1) / kMost));
  }
}

TEST_CASE("the optimizer refuses more ranks than a kernel's arguments hold") {
  EmulatedGpu emulated;
  const std::vector<const float*> grads(gpu::kMaxRanks + 1);
  const std::vector<float*> weights(gpu::kMaxRanks + 1);
  CHECK_THROWS_AS(emulated.optimizer().optimizer_update({.grads = grads, .weights = weights}),
                  Error);
}

TEST_CASE("a squared norm's bits depend neither on the order of threads nor on the device's size") {
  const auto cpu = cpu_backend();
  std::vector<OptimizerKernelCase> all = optimizer_kernel_cases();
  all.push_back({40009, 3, 40002, 2, 0});
  all.push_back({40009, 3, 40002, 2, 1});
  for (const OptimizerKernelCase& c : all) {
    CAPTURE(c.elements);
    CAPTURE(c.misaligned);
    const auto norm_by = [&](const auto& optimizer_update) {
      double result = 7;
      state_after(c, AdamW{}, [&](OptimizerShard shard) {
        shard.squared_norm = &result;
        optimizer_update(shard);
      });
      return result;
    };
    const auto norm_in = [&](Backend& emulated) {
      return norm_by(
          [&](const OptimizerShard& shard) { emulated.optimizer().optimizer_update(shard); });
    };
    const double expected =
        norm_by([&](const OptimizerShard& shard) { cpu->optimizer().optimizer_update(shard); });
    EmulatedGpu some;
    const double result = norm_in(some);
    CHECK(result == doctest::Approx(expected).epsilon(1e-13));
    check_in_all_orders(result, norm_in);
  }
}

TEST_CASE("missing barriers and blocks of a squared norm are seen") {
  const OptimizerKernelCase c{26000, 0, 26000, 1, 0};
  const auto run = [&] {
    EmulatedGpu emulated(1);  // eight blocks for thirteen chunks
    double result = 0;
    state_after(c, Sgd{}, [&](OptimizerShard shard) {
      shard.squared_norm = &result;
      emulated.optimizer().optimizer_update(shard);
    });
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
