#include "lockstep/optim/optimizer.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/nn/models/unet.h"

namespace lockstep {
namespace {

/// conv, gamma, beta, conv, bias: of odd sizes, so that the flat memory has gaps.
struct Parameters {
  Parameters() {
    store.parameter("a.weight", Shape{5, 3, 3, 3}, ParameterKind::kWeight, 27);
    store.parameter("bn.weight", Shape{5}, ParameterKind::kNorm);
    store.parameter("bn.bias", Shape{5}, ParameterKind::kNorm);
    store.parameter("b.weight", Shape{7, 5, 1, 1}, ParameterKind::kWeight, 5);
    store.parameter("b.bias", Shape{7}, ParameterKind::kBias);
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

TEST_CASE("a U-Net's ranges alternate between two decays") {
  ParameterStore store;
  const auto backend = make_backend({}, 1);
  const auto network =
      build_network(unet({.width = 4, .depth = 4, .num_classes = 3}), {}, {1, 8, 8, 3}, {}, *backend, store);
  const std::size_t layers = network->batch_norms().size();
  CHECK(layers == 14);
  CHECK(parameter_ranges(store, Sgd{}).size() == 2 * layers + 1);
}

TEST_CASE("owners share the parameters without overlap, at multiples of 16") {
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
    CHECK(largest <= (model.store.elements() + owners - 1) / owners + 16);
  }
}

TEST_CASE("pieces start at multiples of 16") {
  const std::vector<ParameterRange> all{{0, 1000, 0}};
  std::int64_t next = 0;
  for (int owner = 0; owner < 7; ++owner) {
    const auto owned = owned_ranges(all, 1000, owner, 7);
    REQUIRE(owned.size() == 1);
    CHECK(owned[0].begin == next);
    CHECK(owned[0].begin % 16 == 0);
    next = owned[0].end;
  }
  CHECK(next == 1000);
  CHECK_THROWS_AS(owned_ranges(all, 1000, 7, 7), Error);
}

}  // namespace lockstep
