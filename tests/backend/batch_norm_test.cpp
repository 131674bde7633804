// BatchNorm's training passes against loops in double, for every option, and for replicas that
// share statistics. Upstream gradients are random: with a plain sum as the loss the true gradient
// is zero and a backward pass without its variance or mean path would pass.

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "backend/batch_norm_group.h"
#include "backend/cpu/stream_store.h"
#include "backend/operand.h"
#include "support/backends.h"
#include "support/gradient_check.h"

namespace lockstep::test {
namespace {

constexpr double kForwardTolerance = 2e-6;
constexpr double kGradientTolerance = 1e-5;

// A single replica. With two rows and a small eps the true gradient is almost zero and its relative
// error says nothing.
BatchNormProblem problem(const Shape& shape) {
  BatchNormProblem p(shape, {shape.batch()});
  if (shape.rows() < 4) p.eps = 0.5F;
  return p;
}

// Mean, variance and invstd of every rank, and the running statistics, against the whole batch.
void check_statistics(const BatchNormProblem& p, const BatchNormResult& result) {
  const auto channels = static_cast<std::size_t>(p.shape.channels());
  const auto n = static_cast<double>(p.shape.rows());
  for (std::size_t rank = 0; rank < result.saved.size(); ++rank) {
    CAPTURE(rank);
    for (std::size_t c = 0; c < channels; ++c) {
      const double var = p.expected.var[c];
      CHECK(result.saved[rank][c] == doctest::Approx(p.expected.mean[c]).epsilon(1e-6));
      CHECK(result.saved[rank][channels + c] ==
            doctest::Approx(p.expected.invstd[c]).epsilon(1e-6));
      CHECK(result.running_mean[rank][c] ==
            doctest::Approx(0.9 * p.running_mean[c] + 0.1 * p.expected.mean[c]).epsilon(1e-5));
      CHECK(result.running_var[rank][c] ==
            doctest::Approx(0.9 * p.running_var[c] + 0.1 * var * n / (n - 1)).epsilon(1e-6));
    }
  }
}

void check_against_reference(const BatchNormProblem& p, const BatchNormResult& result) {
  CHECK(relative_error(result.y, p.expected.y, p.dtype) < kForwardTolerance);
  check_statistics(p, result);
  CHECK(relative_error(result.grad_x, p.expected_gradients.x, p.dtype) < kGradientTolerance);
  if (p.residual) {
    CHECK(relative_error(result.grad_residual, p.expected_gradients.residual) == 0);
  }
  if (p.affine) {
    CHECK(relative_error(result.grad_weight, p.expected_gradients.weight) < kGradientTolerance);
    CHECK(relative_error(result.grad_bias, p.expected_gradients.bias) < kGradientTolerance);
  }
}

void check_on_all_backends(const BatchNormProblem& fp32) {
  for_each_type([&](const TypedBackend& on) {
    const BatchNormProblem p = fp32.stored_as(on.dtype);
    BatchNormGroup group(on.backend, p);
    group.forward();
    group.backward();
    CHECK(group.margins_untouched());
    check_against_reference(p, group.result());
  });
}

}  // namespace

TEST_CASE("the reference's own gradient is that of central differences") {
  for (const bool clamp : {false, true}) {
    BatchNormProblem p = problem({4, 5, 3});
    p.relu = true;
    p.residual = true;
    p.eps = clamp ? 0.9F : 0.1F;  // with clamp some channels are below and some above
    p.eps_mode = clamp ? EpsMode::kClamp : EpsMode::kAdd;
    p.draw(11);
    const auto outputs = [&](const Doubles& x) {
      ReferenceBatchNorm moved = p.reference;
      moved.x = x;
      return moved.forward().y;
    };
    const Doubles numerical = numerical_gradient(outputs, p.reference.x, widen(p.grad_y));
    CHECK(gradient_error(p.expected_gradients.x, numerical) < 1e-8);
  }
}

TEST_CASE("BatchNorm matches the reference for shapes of every rank") {
  const std::vector<Shape> shapes = {{7, 3},          {5, 1},           {2, 1},
                                     {300, 130},      {5, 9, 1},        {3, 1, 64},
                                     {2, 5, 7, 16},   {1, 40, 33, 8},   {2, 31, 35, 65},
                                     {2, 45, 61, 11}, {3, 2, 3, 5, 11}, {1, 257, 16}};
  std::uint32_t seed = 100;
  for (const Shape& shape : shapes) {
    for (const Margins margins : {Margins{}, Margins{3, 5}}) {
      CAPTURE(to_string(shape));
      CAPTURE(margins.before);
      BatchNormProblem p = problem(shape);
      p.margins = margins;
      p.relu = true;
      p.draw(seed += 10);
      check_on_all_backends(p);
    }
  }
}

TEST_CASE("BatchNorm matches the reference with every combination of options") {
  for (int bits = 0; bits < 16; ++bits) {
    BatchNormProblem p = problem({3, 6, 7, 5});
    p.affine = (bits & 1) != 0;
    p.residual = (bits & 2) != 0;
    p.relu = (bits & 4) != 0;
    p.eps_mode = (bits & 8) != 0 ? EpsMode::kClamp : EpsMode::kAdd;
    p.eps = 0.4F;  // between the channels' variances, so that `clamp` cuts some of them
    CAPTURE(bits);
    p.draw(500 + 10 * static_cast<std::uint32_t>(bits));
    check_on_all_backends(p);
  }
}

TEST_CASE("replicas with uneven and empty parts equal one batch") {
  const std::vector<std::vector<std::int64_t>> splits = {
      {6, 1, 4}, {0, 11}, {5, 0, 0, 6}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}};
  for (const bool residual : {false, true}) {
    for (const auto& split : splits) {
      CAPTURE(split.size());
      BatchNormProblem p({11, 13, 12, 16}, split);
      p.relu = true;
      p.residual = residual;
      p.margins = {0, 16};
      p.draw(900);
      check_on_all_backends(p);
    }
  }
}

TEST_CASE("one value per replica is enough when the group has more") {
  BatchNormProblem p({2, 3}, {1, 1});
  p.eps = 0.5F;
  p.draw(950);
  check_on_all_backends(p);
}

TEST_CASE("the comparison sees the classic faults of a backward pass") {
  BatchNormProblem p({6, 9, 7, 4}, {4, 2});
  p.draw(1000);
  const auto& right = p.expected_gradients;
  const auto rows = static_cast<double>(p.shape.rows());
  Doubles none(right.x.size()), tripled = right.x, no_variance = right.x, no_mean = right.x;
  for (std::size_t i = 0; i < right.x.size(); ++i) {
    const std::size_t c = i % 4;
    const double scale = p.weight[c] * p.expected.invstd[c];
    const double centred = p.x[i] - p.expected.mean[c];
    tripled[i] *= 3;
    no_variance[i] +=
        scale * centred * std::pow(p.expected.invstd[c], 2) * right.sum_dy_xmu[c] / rows;
    no_mean[i] += scale * right.sum_dy[c] / rows;
  }
  const auto backend = make_backend({DeviceKind::kCpu, 0, 0}, 1);
  const Values grad_x = run_batch_norm(*backend, p).grad_x;
  CHECK(relative_error(grad_x, right.x) < kGradientTolerance);
  for (const Doubles& wrong : {none, tripled, no_variance, no_mean}) {
    CHECK(relative_error(grad_x, wrong) > 100 * kGradientTolerance);
  }
}

TEST_CASE("the comparison sees statistics or gradients that were not exchanged") {
  BatchNormProblem p({6, 9, 7, 4}, {4, 2});
  p.draw(1100);
  const auto backend = make_backend({DeviceKind::kCpu, 0, 0}, 1);
  BatchNormGroup group(*backend, p);
  group.forward();
  const std::vector<StatSlot> sums = group.sum_slots();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    backend->norms().batch_norm_backward_apply(
        group.apply_arguments(group.replica(rank), std::span(sums).subspan(rank, 1)));
  }
  CHECK(relative_error(group.result().grad_x, p.expected_gradients.x) > 100 * kGradientTolerance);

  const std::vector<StatSlot> moments = group.moment_slots();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    backend->norms().batch_norm_forward(
        group.forward_arguments(group.replica(rank), std::span(moments).subspan(rank, 1)));
  }
  CHECK(relative_error(group.result().y, p.expected.y) > 100 * kForwardTolerance);
}

TEST_CASE("the ReLU mask recomputed from x is exactly that of the output") {
  for (const std::int64_t channels : {1, 3, 8, 11, 16, 33, 70}) {
    for (const Margins margins : {Margins{}, Margins{1, 2}}) {
      BatchNormProblem p = problem({2, 17, 19, channels});
      p.relu = true;
      p.margins = margins;
      p.draw(1200 + static_cast<std::uint32_t>(channels));
      for_each_type([&](const TypedBackend& on) {
        CAPTURE(channels);
        BatchNormProblem typed = p.stored_as(on.dtype);
        typed.grad_y = Values(p.x.size(), 1.0F);  // sum dy' counts the elements that pass
        BatchNormGroup group(on.backend, typed);
        group.forward();
        group.sum_slots();
        const BatchNormResult result = group.result();
        Values passed(static_cast<std::size_t>(channels));
        for (std::size_t i = 0; i < result.y.size(); ++i) {
          passed[i % passed.size()] += result.y[i] > 0 ? 1.0F : 0.0F;
        }
        CHECK(Values(result.sums[0].begin(), result.sums[0].begin() + channels) == passed);
      });
    }
  }
}

TEST_CASE("grad_x may be the memory of grad_y; a residual's gradient may accumulate") {
  BatchNormProblem fp32 = problem({2, 9, 10, 16});
  fp32.relu = true;
  fp32.residual = true;
  fp32.draw(1300);
  for_each_type([&](const TypedBackend& on) {
    const BatchNormProblem p = fp32.stored_as(on.dtype);
    const BatchNormResult separate = run_batch_norm(on.backend, p);
    BatchNormGroup group(on.backend, p);
    BatchNormReplica& replica = group.replica(0);
    group.forward();
    const std::vector<StatSlot> sums = group.sum_slots();
    BatchNormBackwardApply a = group.apply_arguments(replica, sums);
    replica.grad_residual.set(p.residual_values);
    a.grad_x = a.grad_y;
    a.accumulate_residual = true;
    on->norms().batch_norm_backward_apply(a);
    CHECK(replica.grad_y.get() == separate.grad_x);
    Values added = p.residual_values;
    for (std::size_t i = 0; i < added.size(); ++i) added[i] += separate.grad_residual[i];
    CHECK(replica.grad_residual.get() == on.stored(added));
  });
}

TEST_CASE("gradients of gamma and beta are added to what is there") {
  BatchNormProblem p = problem({2, 5, 6, 3});
  p.draw(1400);
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    BatchNormGroup group(*named.backend, p);
    group.forward();
    group.sum_slots();
    const Values weight = group.result().grad_weight, bias = group.result().grad_bias;
    group.sum_slots();
    for (std::size_t c = 0; c < 3; ++c) {
      CHECK(group.result().grad_weight[c] == 2 * weight[c]);
      CHECK(group.result().grad_bias[c] == 2 * bias[c]);
    }
  }
}

TEST_CASE("the bits do not depend on the number of threads") {
  BatchNormProblem p = problem({2, 90, 97, 16});
  p.relu = true;
  p.draw(1500);
  const auto one = make_backend({DeviceKind::kCpu, 0, 0}, 1);
  const BatchNormResult expected = run_batch_norm(*one, p);
  for (const int threads : {2, 3, 5}) {
    CAPTURE(threads);
    const auto several = make_backend({DeviceKind::kCpu, 0, 0}, threads);
    const BatchNormResult result = run_batch_norm(*several, p);
    CHECK(result.moments == expected.moments);
    CHECK(result.saved == expected.saved);
    CHECK(result.y == expected.y);
    CHECK(result.sums == expected.sums);
    CHECK(result.grad_x == expected.grad_x);
    CHECK(result.grad_weight == expected.grad_weight);
  }
}

TEST_CASE("a channel range that is written past the caches has the bits of a dense output") {
  const auto backend = cpu(2);
  const Shape shape{3, 64, 96, 32};
  Values x_values = random_values(shape, 1600);
  x_values[7] = std::numeric_limits<float>::quiet_NaN();
  const Operand x(*backend, shape, x_values), residual(*backend, shape, random_values(shape, 1601));
  const Operand dense(*backend, shape), range(*backend, shape, Margins{16, 16});
  REQUIRE(streams(range.tensor()));
  const Values mean = random_values({1, 32}, 1602), var(32, 0.7F);
  const Values weight = random_values({1, 32}, 1603), bias = random_values({1, 32}, 1604);
  for (const bool relu : {false, true}) {
    for (const bool adds : {false, true}) {
      CAPTURE(relu);
      CAPTURE(adds);
      BatchNormInference a;
      a.x = x.tensor();
      if (adds) a.residual = residual.tensor();
      a.y = dense.tensor();
      a.affine = {weight.data(), bias.data()};
      a.mean = mean.data();
      a.var = var.data();
      a.relu = relu;
      backend->norms().batch_norm_inference(a);
      a.y = range.tensor();
      backend->norms().batch_norm_inference(a);
      const Values expected = dense.get(), result = range.get();
      CHECK(std::isnan(result[7]));
      CHECK(std::memcmp(result.data(), expected.data(), result.size() * sizeof(float)) == 0);
      CHECK(range.margins_untouched());
    }
  }
}

}  // namespace lockstep::test
