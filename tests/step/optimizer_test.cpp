// Optimizers in whole training steps: AdamW's state and count of updates, groups of parameters.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/core/check.h"
#include "step/placed_training.h"

namespace lockstep::test {
namespace {

DataParallelOptions adamw_options(int ranks, std::int64_t batch = 5) {
  DataParallelOptions options = toy_options(ranks, BatchNormMode::kSync, batch);
  options.optimizer = AdamW{.beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1F};
  options.parameter_groups = {{.prefix = "head", .lr_mult = 4, .weight_decay = 0.2F},
                              {.prefix = "encoder.0", .lr_mult = 0.5F}};
  return options;
}

void take_steps(DataParallel& run, std::int64_t begin, std::int64_t end, std::int64_t batch = 5) {
  for (std::int64_t step = begin; step < end; ++step) {
    run.train_step(toy_batch(batch, step), step, 0.01F);
  }
}

std::vector<float> floats_of(const TensorMap& tensors, const char* name) {
  const HostTensor& tensor = tensors.at(name);
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

}  // namespace

TEST_CASE("AdamW over several owners has the bits of one owner") {
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    const auto owners = make_toy(adamw_options(ranks, 2 * ranks));
    DataParallelOptions options = adamw_options(ranks, 2 * ranks);
    // Each rank owns all of its weights.
    options.gradient_exchange = {GradientExchangeKind::kAllReduce, 1000, 2000};
    const auto own = make_toy(options);
    take_steps(*owners, 0, 4, 2 * ranks);
    take_steps(*own, 0, 4, 2 * ranks);
    CHECK(outcome_of(*owners, {}) == outcome_of(*own, {}));
    for (int rank = 1; rank < ranks; ++rank) {
      CHECK(parameters(*owners, rank) == parameters(*owners, 0));
    }
  }
}

TEST_CASE("training with AdamW that goes on equals training that was not interrupted") {
  const auto whole = make_toy(adamw_options(3)), first = make_toy(adamw_options(3)),
             second = make_toy(adamw_options(3)), forgetful = make_toy(adamw_options(3));
  take_steps(*whole, 0, 6);
  take_steps(*first, 0, 3);
  for (DataParallel* run : {second.get(), forgetful.get()}) copy_parameters(*first, *run);
  const OptimizerState state = first->optimizer_state();
  CHECK(state.optimizer == "adamw");
  CHECK(state.slots.size() == 2);
  second->set_optimizer_state(state);
  take_steps(*second, 3, 6);
  CHECK(outcome_of(*second, {}) == outcome_of(*whole, {}));
  take_steps(*forgetful, 3, 6);
  CHECK(parameters(*forgetful, 0) != parameters(*whole, 0));
}

TEST_CASE("a step that was left out is no update for AdamW") {
  for (const bool sums : {false, true}) {
    CAPTURE(sums);
    DataParallelOptions options = adamw_options(2);
    if (sums) options.gradient_exchange = {GradientExchangeKind::kAllReduce, 1000, 2000};
    const auto plain = make_toy(options);
    options.loss_scale = LossScaleOptions{0x1p127F, 2000};
    const auto scaled = make_toy(options);
    for (DataParallel* run : {plain.get(), scaled.get()}) {
      set_parameter(*run, "encoder.0.0.bn.weight", 100);  // makes gradients large
    }
    std::int64_t step = 0;
    while (scaled->train_step(toy_batch(5, 0), step, 0.01F).skipped) ++step;
    CHECK(step > 0);
    plain->train_step(toy_batch(5, 0), 0, 0.01F);
    CHECK(parameters(*scaled, 0) == parameters(*plain, 0));
    CHECK(scaled->optimizer_state() == plain->optimizer_state());
  }
}

TEST_CASE("a learning rate multiplied by ten on a prefix is what one computes by hand") {
  constexpr double kLr = 0.01, kDecay = 0.25;
  for (const bool adamw : {false, true}) {
    CAPTURE(adamw);
    DataParallelOptions options = toy_options(2, BatchNormMode::kSync);
    options.optimizer = Sgd{.weight_decay = 0.25F, .norm_weight_decay = 0.25F};
    if (adamw) options.optimizer = AdamW{.weight_decay = 0.25F, .norm_weight_decay = 0.25F};
    options.parameter_groups = {{.prefix = "head", .lr_mult = 10}};
    const auto run = make_toy(options);
    const std::vector<float> before = parameters(*run, 0);
    run->train_step(toy_batch(5, 0), 0, static_cast<float>(kLr));
    const std::vector<float> after = parameters(*run, 0), a = gradients(*run, 0),
                             b = gradients(*run, 1);
    int heads = 0;
    for (const auto& parameter : run->replica(0).store().parameters()) {
      CAPTURE(parameter->name);
      const bool head = parameter->name.starts_with("head.");
      heads += head ? 1 : 0;
      const double lr = head ? 10 * kLr : kLr;
      for (std::int64_t k = 0; k < parameter->elements; ++k) {
        const auto i = static_cast<std::size_t>(parameter->offset + k);
        const double weight = before[i];
        const double grad = static_cast<double>(a[i] + b[i]);
        // AdamW's first step: mean and root of the square are the gradient and its magnitude.
        const double expected =
            adamw ? weight - lr * kDecay * weight - lr * grad / (std::abs(grad) + 1e-8)
                  : weight - lr * (grad + kDecay * weight);
        REQUIRE(after[i] == doctest::Approx(expected).epsilon(1e-5));
      }
    }
    CHECK(heads == 2);
  }
}

TEST_CASE("a group without parameters is an error that names it") {
  DataParallelOptions options = toy_options(2, BatchNormMode::kSync);
  options.parameter_groups = {{.prefix = "haed", .lr_mult = 10}};
  CHECK_THROWS_WITH_AS(DataParallel{options}, doctest::Contains("\"haed\""), ConfigError);
  options.parameter_groups = {{.prefix = "head", .lr_mult = -1}};
  CHECK_THROWS_WITH_AS(DataParallel{options}, doctest::Contains("lr_mult"), ConfigError);
}

TEST_CASE("a step is as long as the bound of the gradient's norm, which is told as it was") {
  for (const bool sums : {false, true}) {
    CAPTURE(sums);
    DataParallelOptions options = toy_options(3, BatchNormMode::kSync);
    if (sums) options = all_reduced(options);
    options.optimizer = Sgd{.momentum = 0, .weight_decay = 0};
    const auto plain = make_toy(options);
    const double norm = plain->train_step(toy_batch(5, 0), 0, 1.0F).grad_norm;
    for (const double share : {0.25, 4.0}) {
      CAPTURE(share);
      options.gradient_clipping.norm = static_cast<float>(share * norm);
      const auto clipped = make_toy(options);
      const std::vector<float> before = parameters(*clipped, 2);
      CHECK(clipped->train_step(toy_batch(5, 0), 0, 1.0F).grad_norm == norm);
      const std::vector<float> after = parameters(*clipped, 2);
      if (share > 1) CHECK(after == parameters(*plain, 2));
      double squares = 0;
      for (std::size_t i = 0; i < after.size(); ++i) {
        squares += std::pow(static_cast<double>(after[i]) - static_cast<double>(before[i]), 2);
      }
      CHECK(std::sqrt(squares) == doctest::Approx(std::min(share, 1.0) * norm).epsilon(1e-4));
      CHECK(parameters(*clipped, 0) == after);
    }
  }
}

TEST_CASE("no element of the gradient is larger than its bound") {
  DataParallelOptions options = toy_options(2, BatchNormMode::kSync);
  options.optimizer = Sgd{.momentum = 0, .weight_decay = 0};
  options.gradient_clipping.value = 1e-3F;
  const auto run = make_toy(options);
  const std::vector<float> before = parameters(*run, 0);
  run->train_step(toy_batch(5, 0), 0, 1.0F);
  CHECK(distance(parameters(*run, 0), before) == doctest::Approx(1e-3).epsilon(1e-3));
}

TEST_CASE("clipping: each owner of a part of the parameters has the bits of one that has all") {
  DataParallelOptions options = adamw_options(3, 6);
  options.gradient_clipping = {.norm = 0.05F, .value = 0.01F};
  const auto owners = make_toy(options);
  const auto own = make_toy(all_reduced(options));
  take_steps(*owners, 0, 4, 6);
  take_steps(*own, 0, 4, 6);
  CHECK(outcome_of(*owners, {}) == outcome_of(*own, {}));
}

TEST_CASE("frozen parameters stay, have no state and no part in the gradient's norm") {
  DataParallelOptions options = toy_options(3, BatchNormMode::kSync);
  const auto whole = make_toy(options);
  options.parameter_groups = {{.prefix = "encoder", .frozen = true}};
  const auto frozen = make_toy(options);
  const TensorMap before = frozen->state_dict();
  const double norm = whole->train_step(toy_batch(5, 0), 0, 0.1F).grad_norm;
  CHECK(frozen->train_step(toy_batch(5, 0), 0, 0.1F).grad_norm < norm);
  const std::vector<float> momentum = frozen->optimizer_state().slots.at("momentum_buffer");
  const ParameterStore& store = frozen->replica(0).store();
  for (const auto& parameter : store.parameters()) {
    CAPTURE(parameter->name);
    const bool stays = parameter->name.starts_with("encoder");
    CHECK((frozen->state_dict().at(parameter->name).data == before.at(parameter->name).data) ==
          stays);
    const auto begin = momentum.begin() + parameter->offset;
    CHECK(std::all_of(begin, begin + parameter->elements, [](float v) { return v == 0; }) == stays);
  }
  options.parameter_groups = {{.prefix = "nowhere", .frozen = true}};
  CHECK_THROWS_AS(make_toy(options), ConfigError);
}

TEST_CASE(
    "a frozen encoder has the bits of one whose gradient is set to 0, and takes fewer exchanges") {
  for (const bool sums : {false, true}) {
    for (const int accumulate : {1, 2}) {
      CAPTURE(sums);
      CAPTURE(accumulate);
      DataParallelOptions options = toy_options(3, BatchNormMode::kSync);
      if (sums) options = all_reduced(options);
      options.accumulate = accumulate;
      options.optimizer = Sgd{.weight_decay = 0, .norm_weight_decay = 0};
      DataParallelOptions zeroed = options;
      zeroed.on_gradients = [](std::span<const NamedGradient> gradients) {
        for (const NamedGradient& gradient : gradients) {
          if (!gradient.name.starts_with("encoder")) continue;
          std::fill(gradient.values.begin(), gradient.values.end(), 0.0F);
        }
      };
      options.parameter_groups = {{.prefix = "encoder", .frozen = true}};
      const auto run = make_toy(options), twin = make_toy(zeroed);
      const std::int64_t before = run->sync_group().callbacks(Direction::kBackward);
      for (std::int64_t step = 0; step < 3; ++step) {
        const StepResult frozen = run->train_step(toy_batch(5, step), step, 0.1F);
        const StepResult expected = twin->train_step(toy_batch(5, step), step, 0.1F);
        CHECK(frozen.loss == expected.loss);
        CHECK(frozen.grad_norm == expected.grad_norm);
      }
      CHECK(parameters(*run, 2) == parameters(*twin, 2));
      CHECK(statistics(*run, 2) == statistics(*twin, 2));
      CHECK(run->optimizer_state() == twin->optimizer_state());
      // The decoder's two layers alone meet on the way back.
      CHECK(run->sync_group().callbacks(Direction::kBackward) - before == 3 * accumulate * 2);
      const Parameter& first = *run->replica(0).store().find("encoder.0.0.conv.weight");
      const std::vector<float> all = gradients(*run, 0);
      const auto begin = all.begin() + first.offset;
      CHECK(std::all_of(begin, begin + first.elements, [](float g) { return g == 0; }));
    }
  }
}

TEST_CASE("a run whose parameters are all frozen, at one of its outputs or at all, goes on") {
  DataParallelOptions options = placed_options(2, Sgd{});
  options.parameter_groups = {{.prefix = "stem", .frozen = true},
                              {.prefix = "stem_bn", .frozen = true},
                              {.prefix = "a", .frozen = true},
                              {.prefix = "a_bn", .frozen = true},
                              {.prefix = "aux", .frozen = true}};
  DataParallel one(options);
  options.parameter_groups = {{.prefix = "", .frozen = true}};
  DataParallel all(options);
  const std::vector<float> before = parameters(all, 0);
  const double loss = all.train_step(toy_batch(8, 0), 0, 0.1F).loss;
  CHECK(one.train_step(toy_batch(8, 0), 0, 0.1F).loss == loss);
  CHECK(all.train_step(toy_batch(8, 0), 1, 0.1F).grad_norm == 0);
  CHECK(parameters(all, 1) == before);
}

TEST_CASE("the average of the weights follows them, and goes on where it was") {
  DataParallelOptions options = toy_options(3, BatchNormMode::kSync);
  options.average_decay = 0.75;
  const auto run = make_toy(options), rest = make_toy(options), late = make_toy(options);
  const auto weights_of = [](const TensorMap& tensors) {
    return floats_of(tensors, "encoder.0.0.conv.weight");
  };
  std::vector<float> expected;
  for (std::int64_t step = 0; step < 4; ++step) {
    run->train_step(toy_batch(5, step), step, 0.1F);
    const std::vector<float> weights = weights_of(run->state_dict());
    if (step == 0) expected = weights;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      expected[i] = std::fma(0.25F, weights[i] - expected[i], expected[i]);
    }
    CHECK(weights_of(run->averaged_state_dict()) == expected);
  }
  const TensorMap averaged = run->averaged_state_dict(), weights = run->state_dict();
  CHECK(averaged.at("encoder.0.0.bn.running_mean").data ==
        weights.at("encoder.0.0.bn.running_mean").data);
  late->train_step(toy_batch(5, 7), 0, 0.1F);  // has an average of its own by now
  for (DataParallel* other : {rest.get(), late.get()}) copy_parameters(*run, *other);
  OptimizerState state = run->optimizer_state();
  rest->set_optimizer_state(state);
  state.slots.erase("ema");  // of a run without an average
  late->set_optimizer_state(state);
  CHECK(weights_of(late->averaged_state_dict()) == weights_of(weights));
  run->train_step(toy_batch(5, 4), 4, 0.1F);
  rest->train_step(toy_batch(5, 4), 4, 0.1F);
  CHECK(weights_of(rest->averaged_state_dict()) == weights_of(run->averaged_state_dict()));
}

TEST_CASE("the average begins with the weights, at whatever step the training begins") {
  DataParallelOptions options = toy_options(2, BatchNormMode::kSync);
  options.average_decay = 0.75;
  options.averages_statistics = true;
  const auto weights = make_toy(toy_options(2, BatchNormMode::kSync))->state_dict();
  const auto run = make_toy(options);
  run->load_state_dict(weights);
  const char* const names[] = {"encoder.0.0.conv.weight", "encoder.0.0.bn.running_var"};
  for (const char* name : names)
    CHECK(run->averaged_state_dict().at(name).data == weights.at(name).data);
  run->train_step(toy_batch(5, 100), 100, 0.1F);
  for (const char* name : names) {
    std::vector<float> expected = floats_of(weights, name);
    const std::vector<float> now = floats_of(run->state_dict(), name);
    for (std::size_t i = 0; i < now.size(); ++i) {
      expected[i] = std::fma(0.25F, now[i] - expected[i], expected[i]);
    }
    CHECK(floats_of(run->averaged_state_dict(), name) == expected);
  }
}

TEST_CASE("the average of the running statistics follows rank 0's, and goes on where it was") {
  for (const BatchNormMode mode : {BatchNormMode::kLocal, BatchNormMode::kSync}) {
    DataParallelOptions options = toy_options(3, mode);
    options.average_decay = 0.75;
    options.averages_statistics = true;
    const auto run = make_toy(options), rest = make_toy(options), late = make_toy(options);
    const auto var_of = [](const TensorMap& tensors) {
      return floats_of(tensors, "encoder.1.0.bn.running_var");
    };
    std::vector<float> expected;
    for (std::int64_t step = 0; step < 4; ++step) {
      run->train_step(toy_batch(5, step), step, 0.1F);
      const std::vector<float> now = var_of(run->state_dict());
      if (step == 0) expected = now;
      for (std::size_t i = 0; i < now.size(); ++i) {
        expected[i] = std::fma(0.25F, now[i] - expected[i], expected[i]);
      }
      CHECK(var_of(run->averaged_state_dict()) == expected);
    }
    CHECK(expected != var_of(run->state_dict()));
    Batch spoiled = toy_batch(5, 4);
    spoiled.images[5] = std::nanf("");
    CHECK_THROWS_AS(run->train_step(spoiled, 4, 0.1F), NonFiniteError);
    CHECK(var_of(run->averaged_state_dict()) == expected);
    late->train_step(toy_batch(5, 7), 0, 0.1F);  // has an average of its own by now
    for (DataParallel* other : {rest.get(), late.get()}) copy_parameters(*run, *other);
    OptimizerState state = run->optimizer_state();
    rest->set_optimizer_state(state);
    CHECK(var_of(rest->averaged_state_dict()) == expected);
    state.slots.erase("ema_statistics");  // of a run that did not average them
    late->set_optimizer_state(state);
    CHECK(var_of(late->averaged_state_dict()) == var_of(run->state_dict()));
    state.slots["ema_statistics"] = {1, 2};
    CHECK_THROWS_WITH_AS(late->set_optimizer_state(state),
                         doctest::Contains("2 values of ema_statistics"), DataError);
  }
}

TEST_CASE("a decay of the average that is out of range is refused") {
  DataParallelOptions options = toy_options(2, BatchNormMode::kSync);
  for (const double wrong : {-0.1, 1.0, std::nan("")}) {
    options.average_decay = wrong;
    CHECK_THROWS_WITH_AS(make_toy(options), doctest::Contains("the decay of the weights' average"),
                         ConfigError);
  }
}

}  // namespace lockstep::test
