// What a program sees of the gradients, and may change, between their sum and the update.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "lockstep/core/check.h"
#include "step/placed_training.h"
#include "step/world_training.h"
#include "support/with_timeout.h"

namespace lockstep::test {
namespace {

using Gradients = std::map<std::string, std::vector<float>>;

Gradients copy_of(std::span<const NamedGradient> gradients) {
  Gradients copy;
  for (const NamedGradient& gradient : gradients) {
    CHECK(static_cast<std::int64_t>(gradient.values.size()) == gradient.shape.elements());
    copy[gradient.name] = {gradient.values.begin(), gradient.values.end()};
  }
  return copy;
}

/// What a hook makes of a step; it differs from parameter to parameter and from element to element,
/// and every element's depends on all gradients.
void change_all(std::span<const NamedGradient> gradients) {
  double sum = 0;
  for (const NamedGradient& gradient : gradients) {
    for (const float value : gradient.values) sum += static_cast<double>(std::abs(value));
  }
  float factor = 0.5F + static_cast<float>(sum / (1 + sum));
  for (const NamedGradient& gradient : gradients) {
    for (float& value : gradient.values) value = value * factor + 0.001F;
    factor = factor > 2 ? 0.25F : factor * 1.25F;
  }
}

DataParallelOptions plain_options(int ranks) {
  DataParallelOptions options = toy_options(ranks, BatchNormMode::kSync);
  options.optimizer = Sgd{.momentum = 0, .weight_decay = 0};
  return options;
}

/// Of a run's first step.
Gradients seen_in(DataParallelOptions options) {
  Gradients seen;
  options.on_gradients = [&](auto gradients) { seen = copy_of(gradients); };
  make_toy(options)->train_step(toy_batch(5, 0), 0, 0.5F);
  return seen;
}

}  // namespace

TEST_CASE("a hook sees every parameter's gradient, by which the weights then move") {
  for (const bool sums : {false, true}) {
    for (const int ranks : {1, 3}) {
      CAPTURE(sums);
      CAPTURE(ranks);
      DataParallelOptions options = plain_options(ranks);
      if (sums) options = all_reduced(options);
      Gradients seen;
      options.on_gradients = [&](auto gradients) { seen = copy_of(gradients); };
      const auto run = make_toy(options);
      const std::vector<float> before = parameters(*run, 0);
      const StepResult result = run->train_step(toy_batch(5, 0), 0, 0.5F);
      const std::vector<float> after = parameters(*run, ranks - 1);
      double squares = 0;
      CHECK(seen.size() == run->replica(0).store().parameters().size());
      for (const auto& parameter : run->replica(0).store().parameters()) {
        CAPTURE(parameter->name);
        const std::vector<float>& gradient = seen.at(parameter->name);
        REQUIRE(static_cast<std::int64_t>(gradient.size()) == parameter->elements);
        for (std::size_t k = 0; k < gradient.size(); ++k) {
          const std::size_t i = static_cast<std::size_t>(parameter->offset) + k;
          REQUIRE(after[i] == std::fma(-0.5F, gradient[k], before[i]));
          squares += std::pow(static_cast<double>(gradient[k]), 2);
        }
      }
      CHECK(result.grad_norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-6));
    }
  }
}

TEST_CASE(
    "placement: a hook that changes nothing leaves the bits, and sees the same on any ranks") {
  const Placed expected = trained_in_steps(clipped_options(1, AdamW{}));
  std::vector<Gradients> first;
  for (const int ranks : {1, 2, 3, 8}) {
    CAPTURE(ranks);
    std::vector<Gradients> seen;
    DataParallelOptions options = clipped_options(ranks, AdamW{});
    options.on_gradients = [&](auto gradients) { seen.push_back(copy_of(gradients)); };
    CHECK((trained_in_steps(options) == expected));
    CHECK(seen.size() == 5);
    CHECK(seen.front().count("stem.weight") == 0);  // it is frozen
    CHECK(seen.front().count("a.weight") == 1);
    if (first.empty()) first = seen;
    CHECK((seen == first));
  }
}

TEST_CASE("placement: what a hook changes is taken alike on any ranks and in any processes") {
  const auto changed = [](int ranks, int) {
    DataParallelOptions options = clipped_options(ranks, AdamW{});
    options.on_gradients = change_all;
    return options;
  };
  const Placed expected = trained_in_steps(changed(1, 0));
  CHECK_FALSE((trained_in_steps(clipped_options(1, AdamW{})) == expected));
  for (const int ranks : {2, 3, 5}) CHECK((trained_in_steps(changed(ranks, 0)) == expected));
  for (const std::vector<int>& devices : {std::vector{1, 1}, {2, 1}, {1, 2, 3}}) {
    CAPTURE(devices.size());
    CHECK((one_of_all<Placed>(devices, changed,
                              [](DataParallel& run) { return train_steps(run); }) == expected));
  }
}

TEST_CASE("the update takes what a hook leaves, which is then clipped") {
  for (const bool sums : {false, true}) {
    CAPTURE(sums);
    DataParallelOptions options = plain_options(3);
    if (sums) options = all_reduced(options);
    options.gradient_clipping.value = 0.25F;
    options.on_gradients = [](std::span<const NamedGradient> gradients) {
      for (const NamedGradient& gradient : gradients) {
        const bool head = gradient.name == "head.bias";
        std::fill(gradient.values.begin(), gradient.values.end(), head ? 2.0F : 0.0F);
      }
    };
    const auto run = make_toy(options);
    const std::vector<float> before = parameters(*run, 0);
    CHECK(run->train_step(toy_batch(5, 0), 0, 1.0F).grad_norm ==
          doctest::Approx(2 * std::sqrt(3.0)));
    for (int rank = 0; rank < 3; ++rank) {
      const std::vector<float> after = parameters(*run, rank);
      const Parameter& bias = *run->replica(0).store().find("head.bias");
      for (std::size_t i = 0; i < after.size(); ++i) {
        const auto k = static_cast<std::int64_t>(i) - bias.offset;
        const bool moves = k >= 0 && k < bias.elements;
        REQUIRE(after[i] == before[i] - (moves ? 0.25F : 0.0F));
      }
    }
  }
}

TEST_CASE("a hook is called once in a step, with the gradient of all its micro-batches") {
  int calls = 0;
  DataParallelOptions options = plain_options(2);
  options.norm = BatchNorm2d();
  options.accumulate = 2;
  options.on_gradients = [&](auto) { ++calls; };
  const auto run = make_toy(options);
  run->train_step(toy_batch(5, 0), 0, 0.1F);
  CHECK(calls == 1);
  Batch spoiled = toy_batch(5, 1);
  spoiled.images[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_AS(run->train_step(spoiled, 1, 0.1F), NonFiniteError);
  CHECK(calls == 1);
  run->train_step(toy_batch(5, 1), 1, 0.1F);
  CHECK(calls == 2);
}

TEST_CASE("a hook sees gradients without the loss scale, and none of a step that is left out") {
  DataParallelOptions options = plain_options(2);
  const Gradients plain = seen_in(options);
  options.loss_scale = LossScaleOptions{1024, 2000};
  CHECK((seen_in(options) == plain));
  int calls = 0;
  options.loss_scale = LossScaleOptions{0x1p127F, 2000};
  options.on_gradients = [&](auto) { ++calls; };
  const auto run = make_toy(options);
  set_parameter(*run, "encoder.0.0.bn.weight", 100);  // makes gradients large
  int skipped = 0;
  while (run->train_step(toy_batch(5, 0), skipped, 0.01F).skipped) ++skipped;
  CHECK(skipped > 0);
  CHECK(calls == 1);
}

TEST_CASE("what a hook throws ends the run, which names it, and what is no number is told") {
  DataParallelOptions options = plain_options(3);
  const auto throws = [&options](auto error) {
    options.on_gradients = [error](auto) { throw error; };
    const auto run = make_toy(options);
    with_timeout(std::chrono::seconds(30), [&] {
      CHECK_THROWS_WITH_AS(run->train_step(toy_batch(5, 0), 0, 0.1F),
                           doctest::Contains("on_gradients: the norm is above 7"),
                           std::conditional_t<std::is_base_of_v<Error, decltype(error)>,
                                              decltype(error), ReplicaError>);
    });
  };
  throws(std::runtime_error("the norm is above 7"));
  throws(DataError("the norm is above 7"));
  options.on_gradients = [](std::span<const NamedGradient> gradients) {
    gradients.back().values.back() = std::numeric_limits<float>::quiet_NaN();
  };
  CHECK_THROWS_AS(make_toy(options)->train_step(toy_batch(5, 0), 0, 0.1F), NonFiniteError);
}

}  // namespace lockstep::test
