// Batch Renormalization against the paper's formulas in double (Ioffe 2017, algorithm 1), over
// several batches, with r and d of earlier batches and constants in the gradient.

#include "nn/harness.h"
#include "support/gradient_check.h"

namespace lockstep::test {
namespace {

constexpr double kRenormTolerance = 5e-6;
const Shape kRenormShape{4, 3, 2, 5};

/// The layer, and what it has learned of the batches before.
struct PlainRenorm {
  BatchNormOptions options;
  RenormLimits limits = {};
  bool relu = false;
  Doubles weight = {}, bias = {}, running_mean = {}, running_var = {};
  Doubles r = {}, d = {};  // of the last `correct`

  struct Moments {
    Doubles mean, var;
    double rows = 0;
  };
  Moments moments(const Doubles& x) const {
    const std::size_t channels = weight.size();
    Moments all{Doubles(channels), Doubles(channels),
                static_cast<double>(x.size()) / static_cast<double>(channels)};
    for (std::size_t i = 0; i < x.size(); ++i) all.mean[i % channels] += x[i] / all.rows;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double distance = x[i] - all.mean[i % channels];
      all.var[i % channels] += distance * distance / all.rows;
    }
    return all;
  }
  double sigma(double var) const {
    const auto eps = static_cast<double>(options.eps);
    return std::sqrt(options.eps_mode == EpsMode::kAdd ? var + eps : std::max(var, eps));
  }
  void correct(const Doubles& x) {
    const Moments batch = moments(x);
    r.clear(), d.clear();
    for (std::size_t c = 0; c < weight.size(); ++c) {
      const double running = sigma(running_var[c]);
      r.push_back(std::clamp(sigma(batch.var[c]) / running, 1 / limits.max_r, limits.max_r));
      d.push_back(
          std::clamp((batch.mean[c] - running_mean[c]) / running, -limits.max_d, limits.max_d));
    }
  }
  /// With r and d as they are.
  Doubles forward(const Doubles& x) const {
    const Moments batch = moments(x);
    Doubles y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t c = i % weight.size();
      const double normalized = (x[i] - batch.mean[c]) / sigma(batch.var[c]) * r[c] + d[c];
      const double value = normalized * weight[c] + bias[c];
      y.push_back(relu ? std::max(value, 0.0) : value);
    }
    return y;
  }
  void take(const Doubles& x) {
    const Moments batch = moments(x);
    const double momentum = options.momentum.value();
    for (std::size_t c = 0; c < weight.size(); ++c) {
      running_mean[c] += momentum * (batch.mean[c] - running_mean[c]);
      const double unbiased = batch.var[c] * batch.rows / (batch.rows - 1);
      running_var[c] += momentum * (unbiased - running_var[c]);
    }
  }
};

void check_steps(const BatchNormOptions& options, bool relu) {
  const Describe describe = [&](NetworkBuilder& net, Value* x) {
    return BatchRenorm(options)(net, x, "bn", {.relu = relu});
  };
  TestNetwork net(describe, kRenormShape);
  const ReferenceNet drawn = net.reference();
  PlainRenorm reference{.options = options, .relu = relu};
  reference.weight = drawn.parameters.at("bn.weight");
  reference.bias = drawn.parameters.at("bn.bias");
  reference.running_mean = drawn.parameters.at("bn.running_mean");
  reference.running_var = drawn.parameters.at("bn.running_var");
  for (std::uint32_t step = 0; step < 4; ++step) {
    CAPTURE(step);
    const Floats input = random_floats(kRenormShape.elements(), 10 + step, 2.0F);
    Doubles x(input.begin(), input.end());
    reference.limits = RenormLimits(options, step);
    reference.correct(x);
    const StepResult result = net.step(input, 30 + step);
    CHECK(relative_error(result.output, reference.forward(x)) < kRenormTolerance);

    const Floats grad_y = random_floats(kRenormShape.elements(), 30 + step);
    const auto projected = [&] {
      const Doubles y = reference.forward(x);
      double sum = 0;
      for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * static_cast<double>(grad_y[i]);
      return sum;
    };
    CHECK(relative_error(result.input_grad, numerical_gradient(x, projected, 1e-6)) <
          kRenormTolerance);
    CHECK(relative_error(result.grads.at("bn.weight"),
                         numerical_gradient(reference.weight, projected, 1e-6)) < kRenormTolerance);
    CHECK(relative_error(result.grads.at("bn.bias"),
                         numerical_gradient(reference.bias, projected, 1e-6)) < kRenormTolerance);
    reference.take(x);
    const BatchNormState& state = *net.store.batch_norms()[0];
    CHECK(relative_error(download(*net.backend, state.running_mean, 5), reference.running_mean) <
          kRenormTolerance);
    CHECK(relative_error(download(*net.backend, state.running_var, 5), reference.running_var) <
          kRenormTolerance);
  }
}

}  // namespace

TEST_CASE("renorm: the paper's formulas, with limits that cut and that do not") {
  for (const bool relu : {false, true}) {
    for (const auto& [max_r, max_d] : {std::pair{100.0F, 100.0F}, {1.3F, 0.2F}, {1.0F, 0.0F}}) {
      CAPTURE(max_r);
      BatchNormOptions options;
      options.renorm_warmup = 0;
      options.renorm_max_r = max_r;
      options.renorm_max_d = max_d;
      check_steps(options, relu);
    }
  }
  BatchNormOptions options;
  options.eps_mode = EpsMode::kClamp;
  options.eps = 4.0F;  // near the variance
  options.renorm_warmup = 0;
  check_steps(options, false);
}

TEST_CASE("renorm: limits grow as in the paper") {
  const BatchNormOptions paper;  // 5000
  const auto at = [&](std::int64_t batches) { return RenormLimits(paper, batches); };
  CHECK(at(0).max_r == 1);
  CHECK(at(0).max_d == 0);
  CHECK(at(5000).max_r == 1);
  CHECK(at(5000).max_d == 0);
  CHECK(at(15000).max_d == doctest::Approx(2.5));
  CHECK(at(22500).max_r == doctest::Approx(2));
  CHECK(at(25000).max_d == 5);
  CHECK(at(40000).max_r == 3);
  CHECK(at(1000000).max_r == 3);
}

TEST_CASE("renorm: without a correction it is local BatchNorm, and evaluation is BatchNorm's") {
  const auto describe = [](const NormLayer& norm) {
    return [norm](NetworkBuilder& net, Value* x) { return norm(net, x, "bn", {.relu = true}); };
  };
  TestNetwork renorm(describe(BatchRenorm()), kRenormShape);  // in its warm-up
  TestNetwork local(describe(BatchNorm2d()), kRenormShape);
  for (std::uint32_t step = 0; step < 3; ++step) {
    const Floats input = random_floats(kRenormShape.elements(), 40 + step);
    const StepResult got = renorm.step(input, 5), expected = local.step(input, 5);
    CHECK(got.output == expected.output);
    CHECK(got.input_grad == expected.input_grad);
    CHECK(got.grads == expected.grads);
  }
  const Floats input = random_floats(kRenormShape.elements(), 50);
  const StepContext evaluation{.training = false};
  CHECK(renorm.step(input, 5, evaluation) == local.step(input, 5, evaluation));
}

TEST_CASE("renorm: it needs running statistics") {
  BatchNormOptions options;
  options.track_running_stats = false;
  const Describe describe = [&](NetworkBuilder& net, Value* x) {
    return BatchRenorm(options)(net, x, "bn");
  };
  CHECK_THROWS_WITH_AS(TestNetwork(describe, kRenormShape),
                       doctest::Contains("bn: renorm corrects towards running statistics"), Error);
}

}  // namespace lockstep::test
