// What GroupNorm and Batch Renormalization need beside BatchNorm's operations, against loops in
// double.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "backend/operand.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

constexpr double kTolerance = 2e-6;

/// A pass over one image whose channels are normalised in groups.
struct GroupPass {
  Shape shape;
  std::int64_t groups = 1;
  bool relu = false, residual = false, affine = true, accumulate = false;
  Margins margins = {};
};

struct GroupGradients {
  Doubles x, residual;
};

/// In device memory, with what the passes before have left: random statistics and sums will do, for
/// the result is a formula of them.
struct GroupApply {
  GroupPass pass;
  TypedBackend on;
  Values x, grad_y, y, before, saved, sums, weight, bias;
  Operand x_memory, grad_y_memory, y_memory, grad_residual, saved_memory, sums_memory,
      weight_memory, bias_memory;

  GroupApply(const GroupPass& p, const TypedBackend& where)
      : pass(p),
        on(where),
        x(on.random(p.shape, 1)),
        grad_y(on.random(p.shape, 2)),
        y(on.random(p.shape, 3)),
        before(on.random(p.shape, 4)),
        saved(saved_values()),
        sums(random_values(Shape{2, p.shape.channels()}, 5)),
        weight(random_values(Shape{1, p.shape.channels()}, 6)),
        bias(random_values(Shape{1, p.shape.channels()}, 7)),
        x_memory(on, p.shape, x, p.margins),
        grad_y_memory(on, p.shape, grad_y, p.margins),
        y_memory(on, p.shape, y, p.margins),
        grad_residual(on, p.shape, before, p.margins),
        saved_memory(on.backend, Shape{3, p.shape.channels()}, saved),
        sums_memory(on.backend, Shape{2, p.shape.channels()}, sums),
        weight_memory(on.backend, Shape{1, p.shape.channels()}, weight),
        bias_memory(on.backend, Shape{1, p.shape.channels()}, bias) {}

  /// grad_x takes the memory of grad_y.
  void run() {
    const AffineParameters affine{weight_memory.floats(), bias_memory.floats()};
    on->norms().group_norm_backward_apply(
        {.x = x_memory.tensor(),
         .grad_y = grad_y_memory.tensor(),
         .y = masks_by_y() ? y_memory.tensor() : Tensor{},
         .affine = pass.affine ? affine : AffineParameters{},
         .saved = {saved_memory.floats()},
         .relu = pass.relu,
         .sums = sums_memory.floats(),
         .groups = pass.groups,
         .grad_x = grad_y_memory.tensor(),
         .grad_residual = pass.residual ? grad_residual.tensor() : Tensor{},
         .accumulate_residual = pass.accumulate});
  }

  GroupGradients expected() const {
    GroupGradients result;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t c = i % channels();
      const double centred = static_cast<double>(x[i]) - saved[c];
      const double gamma = pass.affine ? weight[c] : 1.0;
      const double output =
          masks_by_y() ? y[i] : centred * gamma * invstd(c) + (pass.affine ? bias[c] : 0.0);
      const double grad = pass.relu && output <= 0 ? 0.0 : static_cast<double>(grad_y[i]);
      const auto [sum, product] = group_sums(c);
      result.x.push_back(invstd(c) *
                         (gamma * grad - sum - centred * saved[2 * channels() + c] * product));
      result.residual.push_back(grad + (pass.accumulate ? static_cast<double>(before[i]) : 0.0));
    }
    return result;
  }

 private:
  std::size_t channels() const { return static_cast<std::size_t>(pass.shape.channels()); }
  bool masks_by_y() const { return pass.relu && pass.residual; }
  double invstd(std::size_t c) const { return saved[channels() + c]; }

  /// Of the channel's group: means of gamma * dy' and of gamma * dy' * (x - mu).
  std::pair<double, double> group_sums(std::size_t c) const {
    const std::size_t width = channels() / static_cast<std::size_t>(pass.groups);
    const auto values = static_cast<double>(pass.shape.rows()) * static_cast<double>(width);
    double sum = 0, product = 0;
    for (std::size_t i = c / width * width; i < (c / width + 1) * width; ++i) {
      const double gamma = pass.affine ? weight[i] : 1.0;
      sum += gamma * static_cast<double>(sums[i]) / values;
      product += gamma * static_cast<double>(sums[channels() + i]) / values;
    }
    return {sum, product};
  }

  /// The channels of a group have one mean and one invstd; of every other group eps is clamped.
  Values saved_values() const {
    const auto count = static_cast<std::size_t>(pass.shape.channels());
    const Values drawn = random_values(Shape{2, pass.shape.channels()}, 8);
    Values all(3 * count);
    for (std::size_t c = 0; c < count; ++c) {
      const std::size_t group = c * static_cast<std::size_t>(pass.groups) / count;
      all[c] = drawn[2 * group];
      all[count + c] = 0.5F + std::abs(drawn[2 * group + 1]);
      all[2 * count + c] = group % 2 == 1 ? 0.0F : all[count + c] * all[count + c];
    }
    return all;
  }
};

void check_apply(const GroupPass& pass) {
  CAPTURE(to_string(pass.shape));
  CAPTURE(pass.groups);
  for_each_type([&](const TypedBackend& on) {
    GroupApply apply(pass, on);
    const GroupGradients expected = apply.expected();
    apply.run();
    CHECK(relative_error(apply.grad_y_memory, expected.x) < kTolerance);
    CHECK(apply.grad_y_memory.margins_untouched());
    if (!pass.residual) return;
    CHECK(relative_error(apply.grad_residual, expected.residual) < kTolerance);
    CHECK(apply.grad_residual.margins_untouched());
  });
}

/// (mean, M2) of values [rows, C], the channels [begin, end) together.
std::pair<double, double> moments_of(const Values& x, std::size_t channels, std::size_t begin,
                                     std::size_t end) {
  double count = 0, mean = 0, m2 = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i % channels < begin || i % channels >= end) continue;
    mean += static_cast<double>(x[i]);
    count += 1;
  }
  mean /= count;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i % channels < begin || i % channels >= end) continue;
    m2 += (static_cast<double>(x[i]) - mean) * (static_cast<double>(x[i]) - mean);
  }
  return {mean, m2};
}

void check_group_moments(const TypedBackend& on, const Shape& shape, std::int64_t groups) {
  const auto channels = static_cast<std::size_t>(shape.channels());
  const auto width = channels / static_cast<std::size_t>(groups);
  Values values = on.random(shape, 5);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] += static_cast<float>(i % channels);  // channels of other means
  }
  values = on.stored(values);
  const Operand x(on, shape, values);
  const Operand slot(on.backend, Shape{2, shape.channels()});
  on->norms().batch_norm_moments(x.tensor(), slot.floats(), 1);
  on->norms().group_moments({.slot = slot.floats(),
                             .rows = shape.rows(),
                             .channels = shape.channels(),
                             .groups = groups});
  Doubles expected(2 * channels);
  for (std::size_t c = 0; c < channels; ++c) {
    const std::size_t begin = c / width * width;
    const auto [mean, m2] = moments_of(values, channels, begin, begin + width);
    expected[c] = mean;
    expected[channels + c] = m2;
  }
  CHECK(relative_error(slot, expected) < kTolerance);
}

/// Batch and running statistics of channels, and what they are corrected to.
struct Renorm {
  static constexpr std::int64_t kChannels = 70;
  static constexpr std::int64_t kRows = 20;
  Values moments, running_mean, running_var, weight, bias;
  double max_r = 1.5, max_d = 0.7;

  Renorm()
      : moments(random_values({2, kChannels}, 1)),
        running_mean(random_values({1, kChannels}, 2)),
        running_var(random_values({1, kChannels}, 3)),
        weight(random_values({1, kChannels}, 4)),
        bias(random_values({1, kChannels}, 5)) {
    for (std::size_t c = 0; c < kChannels; ++c) {
      moments[kChannels + c] = 20 * std::exp(moments[kChannels + c]);
      running_var[c] = std::exp(running_var[c]);
    }
  }

  /// [4, C]: r, d, gamma * r, gamma * d + beta.
  Doubles expected(double eps, bool clamp, bool affine) const {
    Doubles all(4 * kChannels);
    const auto sigma = [&](double var) {
      return std::sqrt(clamp ? std::max(var, eps) : var + eps);
    };
    for (std::size_t c = 0; c < kChannels; ++c) {
      const double running = sigma(running_var[c]);
      const double r = sigma(static_cast<double>(moments[kChannels + c]) / kRows) / running;
      const double d = (static_cast<double>(moments[c]) - running_mean[c]) / running;
      const double gamma = affine ? weight[c] : 1.0, beta = affine ? bias[c] : 0.0;
      all[c] = std::clamp(r, 1 / max_r, max_r);
      all[kChannels + c] = std::clamp(d, -max_d, max_d);
      all[2 * kChannels + c] = gamma * all[c];
      all[3 * kChannels + c] = gamma * all[kChannels + c] + beta;
    }
    return all;
  }
};

void check_correction(Backend& backend, bool clamp, bool affine) {
  const Renorm renorm;
  const Shape row{1, Renorm::kChannels};
  const Operand moments(backend, {2, Renorm::kChannels}, renorm.moments);
  const Operand mean(backend, row, renorm.running_mean), var(backend, row, renorm.running_var);
  const Operand weight(backend, row, renorm.weight), bias(backend, row, renorm.bias);
  const Operand result(backend, {4, Renorm::kChannels});
  const StatSlot slot{Renorm::kRows, moments.floats()};
  const AffineParameters parameters{weight.floats(), bias.floats()};
  const float eps = clamp ? 1.0F : 0.1F;  // clamp: between the variances
  backend.norms().batch_renorm_correction({.slots = {&slot, 1},
                                           .channels = Renorm::kChannels,
                                           .affine = affine ? parameters : AffineParameters{},
                                           .running_mean = mean.floats(),
                                           .running_var = var.floats(),
                                           .eps = eps,
                                           .eps_mode = clamp ? EpsMode::kClamp : EpsMode::kAdd,
                                           .max_r = renorm.max_r,
                                           .max_d = renorm.max_d,
                                           .correction = result.floats(),
                                           .corrected = result.floats() + 2 * Renorm::kChannels});
  const Doubles expected = renorm.expected(static_cast<double>(eps), clamp, affine);
  CHECK(relative_error(result.get(), expected) < kTolerance);
}

}  // namespace

TEST_CASE("group moments are those of all values of a group") {
  for_each_type([](const TypedBackend& on) {
    for (const std::int64_t groups : {1, 2, 5, 10}) {
      CAPTURE(groups);
      check_group_moments(on, {1, 7, 30, 10}, groups);
    }
    check_group_moments(on, {1, 3, 130}, 13);
    check_group_moments(on, {1, 6}, 3);
  });
}

TEST_CASE("group moments of an image without rows stay, and groups are equal") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    const Operand slot(*named.backend, {2, 4}, {0, 0, 0, 0, 0, 0, 0, 0});
    GroupMoments moments{.slot = slot.floats(), .rows = 0, .channels = 4, .groups = 2};
    named.backend->norms().group_moments(moments);
    CHECK(slot.get() == Values(8));
    moments.groups = 3;
    CHECK_THROWS_WITH_AS(named.backend->norms().group_moments(moments),
                         doctest::Contains("4 channels are no 3 equal groups"), Error);
  }
}

TEST_CASE("group norm's dx is the formula's, with every combination of options") {
  for (int bits = 0; bits < 16; ++bits) {
    CAPTURE(bits);
    check_apply({.shape = {1, 9, 13, 12},
                 .groups = 4,
                 .relu = (bits & 1) != 0,
                 .residual = (bits & 2) != 0,
                 .affine = (bits & 4) != 0,
                 .accumulate = (bits & 8) != 0});
  }
}

TEST_CASE("group norm's dx for shapes of every rank, inside wider tensors") {
  for (const Shape& shape : {Shape{1, 6}, Shape{1, 300, 66}, Shape{1, 40, 33, 6},
                             Shape{1, 3, 4, 5, 36}, Shape{1, 20, 20, 144}}) {
    for (const Margins margins : {Margins{}, Margins{3, 5}}) {
      check_apply({.shape = shape, .groups = 3, .relu = true, .margins = margins});
      check_apply({.shape = shape, .groups = 1, .margins = margins});
      check_apply({.shape = shape, .groups = shape.channels(), .residual = true});
    }
  }
}

TEST_CASE("renorm's correction is the paper's") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    for (const bool clamp : {false, true}) {
      for (const bool affine : {false, true}) check_correction(*named.backend, clamp, affine);
    }
  }
}

TEST_CASE("renorm's gradients of gamma and beta are added") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    const Operand corrected(*named.backend, {2, 2}, {1, 2, 3, 4});
    const Operand correction(*named.backend, {2, 2}, {0.5F, 2, -1, 0.25F});
    const Operand weight(*named.backend, {1, 2}, Values{10, 20}),
        bias(*named.backend, {1, 2}, Values{30, 40});
    named.backend->norms().batch_renorm_gradient({.corrected = corrected.floats(),
                                                  .correction = correction.floats(),
                                                  .channels = 2,
                                                  .grad_weight = weight.floats(),
                                                  .grad_bias = bias.floats()});
    CHECK(weight.get() == Values{7.5F, 25});
    CHECK(bias.get() == Values{33, 44});
  }
}

}  // namespace lockstep::test
