#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "lockstep/core/check.h"
#include "lockstep/nn/models.h"
#include "nn/norms/batch_norm_layer.h"
#include "step/parameter_ranges.h"

namespace lockstep {
namespace {

/// conv, gamma, beta, conv, bias: of odd sizes, so that the flat memory has gaps.
struct Parameters {
  Parameters() {
    store.parameter("a.weight", Shape{5, 3, 3, 3}, ParameterKind::kWeight, 27);
    store.parameter("bn.weight", Shape{5}, ParameterKind::kNorm);
    store.parameter("bn.bias", Shape{5}, ParameterKind::kNorm);
    store.parameter("b.weight", Shape{71, 5, 3, 3}, ParameterKind::kWeight, 45);
    store.parameter("b.bias", Shape{71}, ParameterKind::kBias);
    store.allocate(*backend);
  }
  std::unique_ptr<Backend> backend = make_backend({}, 1);
  ParameterStore store;
};

/// How often each element is covered, and with which decay.
void cover(const std::vector<ParameterRange>& ranges, std::vector<int>& times,
           std::vector<float>& decay) {
  for (const ParameterRange& range : ranges) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      ++times[i];
      decay[i] = range.weight_decay;
    }
  }
}

}  // namespace

TEST_CASE("ranges cover every parameter once, with its weight decay") {
  Parameters model;
  Sgd options;
  options.weight_decay = 0.5F;
  options.norm_weight_decay = 0.25F;
  const auto ranges = parameter_ranges(model.store, options);
  CHECK(ranges.size() == 3);
  std::vector<int> times(model.store.elements());
  std::vector<float> decay(model.store.elements());
  cover(ranges, times, decay);
  for (const auto& parameter : model.store.parameters()) {
    const float expected = parameter->kind == ParameterKind::kNorm ? 0.25F : 0.5F;
    for (std::int64_t i = 0; i < parameter->elements; ++i) {
      CHECK(times[parameter->offset + i] == 1);
      CHECK(decay[parameter->offset + i] == expected);
    }
  }
  options.norm_weight_decay = 0.5F;
  CHECK(parameter_ranges(model.store, options).size() == 1);
}

TEST_CASE("biases have a weight decay of their own where there is one") {
  Parameters model;
  const auto decay_of_bias = [&](std::optional<float> decay) {
    Sgd options{.weight_decay = 0.5F, .bias_weight_decay = decay};
    return parameter_ranges(model.store, options).back().weight_decay;
  };
  CHECK(decay_of_bias({}) == 0.5F);
  CHECK(decay_of_bias(0.0F) == 0.0F);
}

TEST_CASE("frozen parameters are in no range") {
  Parameters model;
  const std::vector<ParameterGroup> groups{{.prefix = "bn", .frozen = true}};
  std::vector<int> times(model.store.elements());
  std::vector<float> decay(model.store.elements());
  cover(parameter_ranges(model.store, Sgd{.norm_weight_decay = 1e-4F}, groups), times, decay);
  for (const auto& parameter : model.store.parameters()) {
    CAPTURE(parameter->name);
    for (std::int64_t i = 0; i < parameter->elements; ++i) {
      CHECK(times[parameter->offset + i] == (parameter->name.starts_with("bn") ? 0 : 1));
    }
  }
}

TEST_CASE("a parameter has the group with the longest prefix that fits") {
  Parameters model;
  const Sgd options{.weight_decay = 0.5F, .norm_weight_decay = 0.25F};
  const auto check = [&](const std::vector<ParameterGroup>& groups,
                         const std::vector<std::pair<float, float>>& expected) {
    const auto ranges = parameter_ranges(model.store, options, groups);
    std::size_t i = 0;
    for (const auto& parameter : model.store.parameters()) {
      CAPTURE(parameter->name);
      const auto range = std::find_if(ranges.begin(), ranges.end(), [&](const ParameterRange& r) {
        return r.begin <= parameter->offset && parameter->offset + parameter->elements <= r.end;
      });
      REQUIRE(range != ranges.end());
      CHECK(std::pair(range->lr_scale, range->weight_decay) == expected.at(i++));
    }
  };
  // a.weight, bn.weight, bn.bias, b.weight, b.bias: "b" is not the beginning of "bn".
  check({{.prefix = "b", .lr_mult = 10}},
        {{1, 0.5F}, {1, 0.25F}, {1, 0.25F}, {10, 0.5F}, {10, 0.5F}});
  check({{.prefix = "b", .lr_mult = 10},
         {.prefix = "", .lr_mult = 2, .weight_decay = 0},
         {.prefix = "b.bias", .lr_mult = 3},
         {.prefix = "bn.", .weight_decay = 1}},
        {{2, 0}, {1, 1}, {1, 1}, {10, 0.5F}, {3, 0.5F}});
  const std::vector<ParameterGroup> missing{{.prefix = "b"}, {.prefix = "b.wei"}};
  CHECK_THROWS_WITH_AS(parameter_ranges(model.store, options, missing),
                       doctest::Contains("the parameter group \"b.wei\" fits no parameter"),
                       ConfigError);
  const auto ranges = parameter_ranges(model.store, options,
                                       std::vector<ParameterGroup>{{.prefix = "b", .lr_mult = 10}});
  for (const int owners : {1, 3, 50}) {
    std::vector<float> scale(model.store.elements(), 0.0F);
    for (int owner = 0; owner < owners; ++owner) {
      for (const ParameterRange& r : owned_ranges(ranges, model.store.elements(), owner, owners)) {
        std::fill(scale.begin() + r.begin, scale.begin() + r.end, r.lr_scale);
      }
    }
    for (const ParameterRange& r : ranges) {
      for (std::int64_t i = r.begin; i < r.end; ++i) CHECK(scale[i] == r.lr_scale);
    }
  }
}

TEST_CASE("numbers that no optimizer takes are refused") {
  CHECK_NOTHROW(check_optimizer(Sgd{}, {}));
  CHECK_NOTHROW(check_optimizer(AdamW{}, {}));
  CHECK_THROWS_AS(check_optimizer(Sgd{.momentum = -1}, {}), ConfigError);
  CHECK_THROWS_WITH_AS(check_optimizer(AdamW{.beta2 = 1}, {}),
                       "AdamW's beta2 must be at least 0 and below 1, is 1", ConfigError);
  CHECK_THROWS_AS(check_optimizer(AdamW{.beta1 = -0.1}, {}), ConfigError);
  CHECK_THROWS_AS(check_optimizer(AdamW{.eps = 0}, {}), ConfigError);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_AS(check_optimizer(Sgd{.lr = kInfinity}, {}), ConfigError);
  CHECK_THROWS_AS(check_optimizer(Adam{.weight_decay = kNan}, {}), ConfigError);
  CHECK_THROWS_AS(check_optimizer(RMSprop{.alpha = 1}, {}), ConfigError);
  CHECK_THROWS_WITH_AS(check_optimizer(Sgd{.bias_weight_decay = -1.0F}, {}),
                       doctest::Contains("SGD's bias_weight_decay must be at least 0"),
                       ConfigError);
  CHECK_NOTHROW(check_clipping({.norm = 1, .value = 0.5F}));
  CHECK_THROWS_WITH_AS(check_clipping({.norm = -1}),
                       doctest::Contains("the bound of the gradient's norm must be at least 0"),
                       ConfigError);
  CHECK_THROWS_AS(check_clipping({.norm = kNan}), ConfigError);
  CHECK_THROWS_AS(check_clipping({.value = kInfinity}), ConfigError);
  const std::vector<ParameterGroup> twice{{.prefix = "a"}, {.prefix = "a"}},
      negative{{.prefix = "a", .lr_mult = -1}}, decay{{.prefix = "a", .weight_decay = -1}};
  CHECK_THROWS_WITH_AS(check_optimizer(Sgd{}, twice), doctest::Contains("prefix \"a\""),
                       ConfigError);
  CHECK_THROWS_WITH_AS(check_optimizer(Sgd{}, negative), doctest::Contains("lr_mult"), ConfigError);
  CHECK_THROWS_WITH_AS(check_optimizer(Sgd{}, decay), doctest::Contains("weight_decay"),
                       ConfigError);
}

TEST_CASE("an optimizer's state has PyTorch's names") {
  CHECK(optimizer_name(Sgd{}) == "sgd");
  CHECK(optimizer_slots(Sgd{}) == std::vector<std::string>{"momentum_buffer"});
  CHECK(optimizer_name(AdamW{}) == "adamw");
  CHECK(optimizer_slots(AdamW{}) == std::vector<std::string>{"exp_avg", "exp_avg_sq"});
  CHECK(base_learning_rate(AdamW{}) == 1e-3F);
  CHECK(optimizer_name(Adam{}) == "adam");
  CHECK(optimizer_slots(Adam{}) == optimizer_slots(AdamW{}));
  CHECK(optimizer_name(RMSprop{}) == "rmsprop");
  CHECK(optimizer_slots(RMSprop{}) == std::vector<std::string>{"momentum_buffer", "square_avg"});
}

TEST_CASE("a U-Net's ranges alternate between two decays") {
  ParameterStore store;
  const auto backend = make_backend({}, 1);
  const auto network = build_network(unet({.width = 4, .depth = 4, .num_classes = 3}), {},
                                     {1, 8, 8, 3}, {}, *backend, store);
  const std::size_t layers = batch_norms_of(*network).size();
  CHECK(layers == 14);
  CHECK(parameter_ranges(store, Sgd{}).size() == 2 * layers + 1);
}

TEST_CASE("owners share the parameters without overlap, at multiples of the norm's blocks") {
  Parameters model;
  const auto ranges = parameter_ranges(model.store, {});
  std::vector<int> expected(model.store.elements());
  std::vector<float> expected_decay(model.store.elements());
  cover(ranges, expected, expected_decay);
  for (const int owners : {1, 2, 3, 4, 8, 50}) {
    std::vector<int> times(model.store.elements());
    std::vector<float> decay(model.store.elements());
    std::int64_t largest = 0;
    for (int owner = 0; owner < owners; ++owner) {
      const auto owned = owned_ranges(ranges, model.store.elements(), owner, owners);
      cover(owned, times, decay);
      if (owned.empty()) continue;
      largest = std::max(largest, owned.back().end - owned.front().begin);
    }
    CHECK(times == expected);
    CHECK(decay == expected_decay);
    CHECK(largest <= (model.store.elements() + owners - 1) / owners + kNormBlock);
  }
}

TEST_CASE("pieces start at multiples of the norm's blocks") {
  constexpr std::int64_t kElements = 10 * kNormBlock + 100;
  const std::vector<ParameterRange> all{{0, kElements, 0}};
  std::int64_t next = 0;
  for (int owner = 0; owner < 7; ++owner) {
    const auto owned = owned_ranges(all, kElements, owner, 7);
    REQUIRE(owned.size() == 1);
    CHECK(owned[0].begin == next);
    CHECK(owned[0].begin % kNormBlock == 0);
    next = owned[0].end;
  }
  CHECK(next == kElements);
  CHECK_THROWS_AS(owned_ranges(all, kElements, 7, 7), Error);
}

}  // namespace lockstep
