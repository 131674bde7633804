// Many steps of each optimizer against PyTorch's, from the same gradients: AdamW with two groups of
// parameters, SGD also with a clipped gradient.

#include "lockstep/optim/optimizer.h"

#include <doctest/doctest.h>

#include "oracle/golden.h"

namespace lockstep::oracle {

TEST_CASE("AdamW equals PyTorch's over many steps") {
  const auto golden = load_golden("optimizers");
  if (!golden) return;
  const nlohmann::json about = golden->metadata("case");
  const std::vector<float> initial = golden->floats("initial"), grads = golden->floats("grads");
  const std::vector<double> rates = about["rates"];
  const auto elements = static_cast<std::int64_t>(initial.size());
  const auto backend = make_backend({}, 1);
  const auto bytes = initial.size() * sizeof(float);
  const Storage weight = backend->allocate(bytes), grad = backend->allocate(bytes),
                exp_avg = backend->allocate(bytes), exp_avg_sq = backend->allocate(bytes);
  const auto tensor = [&](const Storage& memory) {
    return Tensor(memory.data(), Shape{1, elements});
  };
  upload(*backend, tensor(weight), initial.data());

  std::vector<ParameterRange> ranges;
  for (const auto& group : about["groups"]) {
    const std::int64_t begin = ranges.empty() ? 0 : ranges.back().end;
    ranges.push_back({begin, begin + elements / 2, group["weight_decay"], group["lr_mult"]});
  }
  const float* all_grads[] = {tensor(grad).floats()};
  float* all_weights[] = {tensor(weight).floats()};
  for (std::size_t step = 0; step < rates.size(); ++step) {
    upload(*backend, tensor(grad), grads.data() + step * initial.size());
    const AdamW adamw{.beta1 = about["betas"][0], .beta2 = about["betas"][1], .eps = about["eps"]};
    backend->optimizer().optimizer_update(
        {.grads = all_grads,
         .weights = all_weights,
         .state = {tensor(exp_avg).floats(), tensor(exp_avg_sq).floats()},
         .ranges = ranges,
         .lr = static_cast<float>(rates[step]),
         .optimizer = adamw,
         .updates = {.begun = static_cast<std::int64_t>(step) + 1}});
  }
  check_result(*golden, "adamw.weight", download(*backend, tensor(weight)));
  check_result(*golden, "adamw.exp_avg", download(*backend, tensor(exp_avg)));
  check_result(*golden, "adamw.exp_avg_sq", download(*backend, tensor(exp_avg_sq)));
}

namespace {

/// As train_rule() of make_golden.py.
void check_rule(const Golden& golden, const std::string& name, const Optimizer& optimizer,
                const GradientClipping& clipping) {
  CAPTURE(name);
  const nlohmann::json about = golden.metadata("case");
  const std::vector<float> initial = golden.floats("initial"), grads = golden.floats("grads");
  const std::vector<double> rates = about["rates"];
  const auto elements = static_cast<std::int64_t>(initial.size());
  const auto backend = make_backend({}, 1);
  const Storage weight = backend->allocate(initial.size() * sizeof(float)),
                grad = backend->allocate(initial.size() * sizeof(float)),
                squares = backend->allocate(sizeof(double)),
                factor = backend->allocate(sizeof(float));
  const auto tensor = [&](const Storage& memory) {
    return Tensor(memory.data(), Shape{1, elements});
  };
  upload(*backend, tensor(weight), initial.data());
  const std::vector<std::string> slots = optimizer_slots(optimizer);
  std::vector<Storage> state;
  const float* all_grads[] = {tensor(grad).floats()};
  float* all_weights[] = {tensor(weight).floats()};
  const ParameterRange all{0, elements, about["decay"]};
  OptimizerShard shard{.grads = all_grads, .weights = all_weights, .ranges = {&all, 1}};
  shard.optimizer = optimizer;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    state.push_back(backend->allocate(initial.size() * sizeof(float)));
    shard.state[slot] = tensor(state.back()).floats();
  }
  if (clipping.value > 0) shard.most = clipping.value;
  const GradientSquares of_all{static_cast<const double*>(squares.data()), 0, 1};
  for (std::size_t step = 0; step < rates.size(); ++step) {
    upload(*backend, tensor(grad), grads.data() + step * initial.size());
    if (clipping.norm > 0) {
      backend->optimizer().gradient_squares(shard, static_cast<double*>(squares.data()));
      backend->optimizer().clip_factor(
          {{&of_all, 1}, clipping.norm, static_cast<float*>(factor.data())});
      shard.clip = {0.0F, static_cast<const float*>(factor.data())};
    }
    shard.lr = static_cast<float>(rates[step]);
    shard.updates = {.begun = static_cast<std::int64_t>(step) + 1};
    backend->optimizer().optimizer_update(shard);
  }
  check_result(golden, name + ".weight", download(*backend, tensor(weight)));
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    check_result(golden, name + "." + slots[slot], download(*backend, tensor(state[slot])));
  }
}

}  // namespace

TEST_CASE("SGD with Nesterov's momentum, Adam and RMSprop equal PyTorch's over many steps") {
  const auto golden = load_golden("optimizers");
  if (!golden) return;
  check_rule(*golden, "nesterov", Sgd{.momentum = 0.9F, .nesterov = true}, {});
  check_rule(*golden, "adam", Adam{}, {});
  check_rule(*golden, "rmsprop", RMSprop{.momentum = 0.9F}, {});
}

TEST_CASE("a gradient is clipped as PyTorch clips it") {
  const auto golden = load_golden("optimizers");
  if (!golden) return;
  const nlohmann::json clipping = golden->metadata("case")["clipping"];
  check_rule(*golden, "clipped", Sgd{.momentum = 0.9F, .nesterov = true},
             {.norm = clipping["norm"], .value = clipping["value"]});
}

}  // namespace lockstep::oracle
