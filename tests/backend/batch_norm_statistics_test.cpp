// The statistics themselves: accuracy far from zero, slots merged here or beforehand, empty
// replicas, running statistics and inference.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "backend/batch_norm_group.h"
#include "backend/moments.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

double variance_error(const BatchNormProblem& p, const Values& moments) {
  const auto channels = static_cast<std::size_t>(p.shape.channels());
  double error = 0;
  for (std::size_t c = 0; c < channels; ++c) {
    const double var = moments[channels + c] / static_cast<double>(p.shape.rows());
    error = std::max(error, std::abs(var / p.expected.var[c] - 1));
  }
  return error;
}

using Merge = std::int64_t (*)(std::span<const StatSlot>, std::int64_t, float*);

// What the master would send: the replicas' slots merged on the host, in `memory` [2, C].
StatSlot merged_slot(Merge merge, BatchNormGroup& group, const std::vector<Values>& parts,
                     Operand& memory) {
  std::vector<StatSlot> slots;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    slots.push_back({group.replica(rank).shape.rows(), parts[rank].data()});
  }
  Values merged(parts[0].size());
  const auto channels = static_cast<std::int64_t>(merged.size() / 2);
  const std::int64_t count = merge(slots, channels, merged.data());
  memory.set(merged);
  return {count, memory.floats()};
}

}  // namespace

TEST_CASE("the variance stays accurate however far the mean is from zero") {
  for (const float mean : {0.0F, 10.0F, 1e2F, 1e3F, 1e4F}) {
    BatchNormProblem p({2, 111, 113, 5}, {2});
    p.draw(10, 0.0F);
    for (float& value : p.x) value += mean;
    p.refresh();
    for_each_type([&](const TypedBackend& on) {
      CAPTURE(mean);
      if (spacing(on.dtype, mean) > 0.5) return;  // rounding leaves nothing of the spread
      const BatchNormProblem typed = p.stored_as(on.dtype);
      BatchNormGroup group(on.backend, typed);
      group.moment_slots();
      CHECK(variance_error(typed, group.result().moments[0]) < 1e-6);
    });
  }
}

TEST_CASE("a trend along the rows does not spoil the variance") {
  BatchNormProblem p({1, 50, 400, 3}, {1});
  p.draw(20);
  for (std::size_t i = 0; i < p.x.size(); ++i) p.x[i] += static_cast<float>(i) * 0.01F;
  p.refresh();
  for (NamedBackend& named : available_backends()) {
    BatchNormGroup group(*named.backend, p);
    group.moment_slots();
    CHECK(variance_error(p, group.result().moments[0]) < 1e-6);
  }
}

TEST_CASE("a constant channel has no variance at all") {
  BatchNormProblem p({2, 30, 31, 9}, {2});
  p.draw(30);
  p.x = Values(p.x.size(), 1234.567F);
  for (NamedBackend& named : available_backends()) {
    BatchNormGroup group(*named.backend, p);
    group.moment_slots();
    const Values moments = group.result().moments[0];
    for (std::size_t c = 0; c < 9; ++c) {
      CHECK(moments[c] == 1234.567F);
      CHECK(moments[9 + c] == 0);
    }
  }
}

TEST_CASE("slots merged beforehand give the same bits as slots merged here") {
  BatchNormProblem p({9, 8, 7, 16}, {4, 0, 3, 2});
  p.relu = true;
  p.draw(40);
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    BatchNormGroup here(*named.backend, p);
    here.forward();
    here.backward();
    BatchNormGroup before(*named.backend, p);
    Operand memory(*named.backend, {2, 16});
    before.moment_slots();
    const StatSlot moments = merged_slot(merge_moments, before, before.result().moments, memory);
    for (BatchNormReplica& r : before.replicas()) {
      named.backend->norms().batch_norm_forward(before.forward_arguments(r, {&moments, 1}));
    }
    before.sum_slots();
    const StatSlot sums = merged_slot(merge_sums, before, before.result().sums, memory);
    for (BatchNormReplica& r : before.replicas()) {
      named.backend->norms().batch_norm_backward_apply(before.apply_arguments(r, {&sums, 1}));
    }
    CHECK(moments.count == p.shape.rows());
    CHECK(before.result().saved == here.result().saved);
    CHECK(before.result().running_var == here.result().running_var);
    CHECK(before.result().y == here.result().y);
    CHECK(before.result().grad_x == here.result().grad_x);
  }
}

TEST_CASE("every rank computes the same bits from the same slots, also without rows of its own") {
  BatchNormProblem p({5, 6, 7, 11}, {3, 0, 2});
  p.draw(50);
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    const BatchNormResult result = run_batch_norm(*named.backend, p);
    for (const std::size_t rank : {1, 2}) {
      CHECK(result.saved[rank] == result.saved[0]);
      CHECK(result.running_mean[rank] == result.running_mean[0]);
      CHECK(result.running_var[rank] == result.running_var[0]);
    }
    CHECK(result.moments[1] == Values(22));
    CHECK(result.sums[1] == Values(22));
  }
}

TEST_CASE("rows are normalised again by what a call kept, to the same bits") {
  for (const bool residual : {false, true}) {
    BatchNormProblem p({5, 6, 7, 11}, {5});
    p.relu = true;
    p.residual = residual;
    p.draw(55);
    for (NamedBackend& named : available_backends()) {
      CAPTURE(named.name);
      BatchNormGroup group(*named.backend, p);
      BatchNormReplica& r = group.replica(0);
      const std::vector<StatSlot> slots = group.moment_slots();
      // The statistics alone, of all rows; then the rows, some samples at a time.
      const BatchNormForward all = group.forward_arguments(r, slots);
      BatchNormForward none = all;
      none.x = none.x.sample_range(0, 0);
      none.y = none.residual = {};
      named.backend->norms().batch_norm_forward(none);
      for (const auto& [first, count] : {std::pair{0, 2}, {2, 3}}) {
        BatchNormForward again = group.forward_arguments(r, {});
        again.running = {};
        again.x = all.x.sample_range(first, count);
        again.y = all.y.sample_range(first, count);
        if (residual) again.residual = all.residual.sample_range(first, count);
        named.backend->norms().batch_norm_forward(again);
      }
      const BatchNormResult got = group.result();
      BatchNormGroup whole(*named.backend, p);
      whole.forward();
      const BatchNormResult expected = whole.result();
      CHECK(got.y == expected.y);
      CHECK(got.saved == expected.saved);
      CHECK(got.running_mean == expected.running_mean);
      CHECK(got.running_var == expected.running_var);
    }
  }
}

TEST_CASE("an empty group changes nothing; a single row is refused") {
  BatchNormProblem p({0, 6, 7, 3}, {0, 0});
  p.draw(60);
  for (NamedBackend& named : available_backends()) {
    const BatchNormResult result = run_batch_norm(*named.backend, p);
    CHECK(result.running_mean[0] == p.running_mean);
    CHECK(result.running_var[1] == p.running_var);
    BatchNormProblem single({1, 3}, {1});
    single.draw(61);
    BatchNormGroup group(*named.backend, single);
    CHECK_THROWS_AS(group.forward(), Error);
  }
}

TEST_CASE("running statistics are optional and follow the momentum") {
  BatchNormProblem p({4, 5, 6, 7}, {4});
  p.momentum = 1.0;  // takes the batch's unbiased variance as it is
  p.draw(70);
  for (NamedBackend& named : available_backends()) {
    BatchNormGroup group(*named.backend, p);
    const std::vector<StatSlot> slots = group.moment_slots();
    BatchNormForward a = group.forward_arguments(group.replica(0), slots);
    a.running = {};
    named.backend->norms().batch_norm_forward(a);
    CHECK(group.result().running_mean[0] == p.running_mean);
    named.backend->norms().batch_norm_forward(group.forward_arguments(group.replica(0), slots));
    for (std::size_t c = 0; c < 7; ++c) {
      CHECK(group.result().running_mean[0][c] == doctest::Approx(p.expected.mean[c]));
      CHECK(group.result().running_var[0][c] ==
            doctest::Approx(p.expected.var[c] * 120 / 119).epsilon(1e-6));
    }
  }
}

TEST_CASE("`clamp` stops the variance's gradient exactly where it replaced the variance") {
  BatchNormProblem p({4, 5, 6, 2}, {4});
  p.eps_mode = EpsMode::kClamp;
  p.eps = 0.25F;
  p.draw(80);
  for (std::size_t i = 0; i < p.x.size(); i += 2) p.x[i] = 0.1F * p.x[i];
  p.refresh();
  for (NamedBackend& named : available_backends()) {
    const Values saved = run_batch_norm(*named.backend, p).saved[0];
    CHECK(saved[2] == doctest::Approx(2));
    CHECK(saved[4] == 0);
    CHECK(saved[5] == doctest::Approx(saved[3] * saved[3]));
  }
}

// y of the running statistics.
Doubles inference_reference(const BatchNormProblem& p) {
  const auto channels = static_cast<std::size_t>(p.shape.channels());
  Doubles expected(p.x.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t c = i % channels;
    const double var = p.running_var[c], eps = p.eps;
    const double guarded = p.eps_mode == EpsMode::kClamp ? std::max(var, eps) : var + eps;
    const double gamma = p.affine ? p.weight[c] : 1.0, beta = p.affine ? p.bias[c] : 0.0;
    expected[i] = gamma * (p.x[i] - p.running_mean[c]) / std::sqrt(guarded) + beta;
    if (p.residual) expected[i] += p.residual_values[i];
    if (p.relu) expected[i] = std::max(expected[i], 0.0);
  }
  return expected;
}

TEST_CASE("inference normalises by the given statistics") {
  for (int bits = 0; bits < 16; ++bits) {
    CAPTURE(bits);
    BatchNormProblem fp32({2, 7, 9, 13}, {2});
    fp32.affine = (bits & 1) != 0;
    fp32.residual = (bits & 2) != 0;
    fp32.relu = (bits & 4) != 0;
    fp32.eps_mode = (bits & 8) != 0 ? EpsMode::kClamp : EpsMode::kAdd;
    fp32.eps = 3.0F;  // above the variance: `clamp` takes it
    fp32.margins = {2, 1};
    fp32.draw(90);
    for_each_type([&](const TypedBackend& on) {
      const BatchNormProblem p = fp32.stored_as(on.dtype);
      BatchNormGroup group(on.backend, p);
      BatchNormReplica& r = group.replica(0);
      const BatchNormForward training = group.forward_arguments(r, {});
      on->norms().batch_norm_inference({training.x, training.residual, training.y, training.affine,
                                        r.running_mean.floats(), r.running_var.floats(), p.eps,
                                        p.eps_mode, p.relu});
      CHECK(relative_error(r.y, inference_reference(p)) < 1e-6);
      CHECK(group.margins_untouched());
    });
  }
}

TEST_CASE("a NaN reaches the output and the gradient through the ReLU") {
  BatchNormProblem p({2, 4, 5, 3}, {2});
  p.relu = true;
  p.draw(95);
  p.x[7] = std::numeric_limits<float>::quiet_NaN();
  for_each_type([&](const TypedBackend& on) {
    const BatchNormResult result = run_batch_norm(on.backend, p.stored_as(on.dtype));
    CHECK(std::isnan(result.y[7]));
    CHECK(std::isnan(result.grad_x[7]));
    CHECK(std::isfinite(result.y[6]));
  });
}

}  // namespace lockstep::test
