// Many steps of AdamW against PyTorch's, from the same gradients, with two groups of parameters.

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
    backend->optimizer_update({.grads = all_grads,
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

}  // namespace lockstep::oracle
