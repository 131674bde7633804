#include "lockstep/nn/parameter_store.h"

#include "nn/harness.h"

namespace lockstep::test {

TEST_CASE("parameters: one flat range, aligned, with zeros in the gaps") {
  const std::unique_ptr<Backend> backend = make_backend(Device{}, 1);
  ParameterStore store;
  store.parameter("conv.weight", {5, 3, 1, 1}, ParameterKind::kWeight, 3);
  store.parameter("bn.weight", {5}, ParameterKind::kNorm);
  store.parameter("bn.bias", {5}, ParameterKind::kNorm);
  store.batch_norm("bn", 5);
  store.batch_norm("other", 17);
  CHECK_FALSE(store.allocated());
  store.allocate(*backend);
  CHECK(store.allocated());
  CHECK(store.elements() == 48);
  CHECK(store.statistics_elements() == 2 * 16 + 2 * 32);

  Floats expected(48, 0.0F);
  std::fill_n(expected.begin() + 16, 5, 1.0F);  // gamma
  CHECK(download(*backend, store.values(), 48) == expected);
  CHECK(download(*backend, store.grads(), 48) == Floats(48, 0.0F));
  for (const auto& parameter : store.parameters()) {
    CHECK(parameter->value == store.values() + parameter->offset);
    CHECK(parameter->grad == store.grads() + parameter->offset);
    CHECK(parameter->offset % 16 == 0);
  }
  for (const auto& state : store.batch_norms()) {
    CHECK(download(*backend, state->running_mean, state->channels) ==
          Floats(static_cast<std::size_t>(state->channels), 0.0F));
    CHECK(download(*backend, state->running_var, state->channels) ==
          Floats(static_cast<std::size_t>(state->channels), 1.0F));
    CHECK(state->num_batches_tracked == 0);
    CHECK(state->running_mean >= store.statistics());
    CHECK(state->running_var + state->channels <= store.statistics() + store.statistics_elements());
  }
}

TEST_CASE("parameters: a name is one parameter") {
  const std::unique_ptr<Backend> backend = make_backend(Device{}, 1);
  ParameterStore store;
  Parameter& first = store.parameter("w", {4, 2}, ParameterKind::kWeight, 2);
  CHECK(&store.parameter("w", {4, 2}, ParameterKind::kWeight, 2) == &first);
  CHECK(store.parameters().size() == 1);
  CHECK(store.find("w") == &first);
  CHECK(store.find("v") == nullptr);
  CHECK_THROWS_WITH_AS(store.parameter("w", {2, 4}, ParameterKind::kWeight),
                       doctest::Contains("parameter w exists with shape [4, 2]"), Error);
  CHECK_THROWS_AS(store.parameter("w", {4, 2}, ParameterKind::kBias), Error);
  store.batch_norm("bn", 3);
  CHECK_THROWS_WITH_AS(store.batch_norm("bn", 4), doctest::Contains("3 channels"), Error);
  store.allocate(*backend);
  CHECK_THROWS_WITH_AS(store.parameter("v", {1}, ParameterKind::kBias),
                       doctest::Contains("no parameter v"), Error);
  CHECK_THROWS_AS(store.batch_norm("bn2", 3), Error);
  CHECK_THROWS_AS(store.allocate(*backend), Error);
}

}  // namespace lockstep::test
