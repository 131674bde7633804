// Sums over a batch's samples and over slots, against sums in double.

#include <doctest/doctest.h>

#include <limits>
#include <memory>

#include "backend/operand.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

/// The slots of the parts of a batch, in device memory.
struct Slots {
  std::vector<std::unique_ptr<Operand>> memory;
  std::vector<StatSlot> slots;

  Slots(const TypedBackend& on, const Shape& sample, const std::vector<Values>& parts,
        Margins margins = {}) {
    const std::int64_t elements = sample.rows_per_sample() * sample.channels();
    for (const Values& part : parts) {
      const auto samples = static_cast<std::int64_t>(part.size()) / elements;
      const Operand x(on, sample.with_batch(samples), part, margins);
      memory.push_back(std::make_unique<Operand>(on.backend, Shape{2, elements}));
      on->sums().sum_over_batch(x.tensor(), memory.back()->floats());
      slots.push_back({samples, memory.back()->floats()});
    }
  }
};

void check_sums(const TypedBackend& on, const Shape& shape, Margins margins) {
  const std::int64_t elements = shape.rows_per_sample() * shape.channels();
  std::vector<Values> parts;
  Doubles sums(static_cast<std::size_t>(elements));
  for (const std::int64_t samples : {shape.batch(), std::int64_t{1}, shape.batch() + 2}) {
    parts.push_back(on.random(shape.with_batch(samples), static_cast<std::uint32_t>(samples)));
    for (std::size_t i = 0; i < parts.back().size(); ++i) {
      sums[i % sums.size()] += static_cast<double>(parts.back()[i]);
    }
  }
  const Slots all(on, shape, parts, margins);
  const Values before = on.random(shape, 9);
  for (const bool accumulate : {false, true}) {
    const Operand y(on, shape, before, margins);
    on->sums().broadcast_sum(all.slots, y.tensor(), accumulate);
    Doubles expected(before.size());
    for (std::size_t i = 0; i < before.size(); ++i) {
      expected[i] = sums[i % sums.size()] + (accumulate ? static_cast<double>(before[i]) : 0.0);
    }
    CHECK(relative_error(y, expected) < 1e-7);
    CHECK(y.margins_untouched());
  }
}

TEST_CASE("sums over samples and slots, given to every sample") {
  for_each_type([](const TypedBackend& on) {
    for (const Shape& shape :
         {Shape{3, 5}, Shape{2, 1, 1, 130}, Shape{4, 3, 5, 7}, Shape{2, 300, 40}}) {
      CAPTURE(to_string(shape));
      check_sums(on, shape, {});
      check_sums(on, shape, {2, 3});
    }
  });
}

TEST_CASE("sums of samples keep what fp32 would lose, also from slot to slot") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    const Slots all(*named.backend, {1, 2}, {{1e8F, 3, 1, 4}, {-1e8F, 5}});  // 1e8 + 1 is no float
    const Operand y(*named.backend, {2, 2});
    named.backend->sums().broadcast_sum(all.slots, y.tensor(), false);
    CHECK(y.get() == Values{1, 12, 1, 12});
  }
}

TEST_CASE("a part without samples adds nothing, and takes nothing") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    const Slots all(*named.backend, {1, 3}, {{}, {1, 2, 3}});
    const Operand y(*named.backend, {1, 3});
    named.backend->sums().broadcast_sum(all.slots, y.tensor(), false);
    CHECK(y.get() == Values{1, 2, 3});
    named.backend->sums().broadcast_sum(all.slots, Tensor(nullptr, {0, 3}), false);
  }
}

TEST_CASE("an infinite sum stays one") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    const float infinity = std::numeric_limits<float>::infinity();
    const Slots all(*named.backend, {1, 2}, {{infinity, 3e38F, 1, 3e38F}});
    const Operand y(*named.backend, {1, 2});
    named.backend->sums().broadcast_sum(all.slots, y.tensor(), false);
    CHECK(y.get() == Values{infinity, infinity});
  }
}

}  // namespace
}  // namespace lockstep::test
