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
constexpr double kSumTolerance = 1e-5;

/// A pass over images whose channels are normalised in groups.
struct GroupPass {
  Shape shape;
  std::int64_t groups = 1;
  bool relu = false, residual = false, affine = true, accumulate = false;
  EpsMode eps_mode = EpsMode::kAdd;
  Margins margins = {};
};

/// A channel of an image.
struct Place {
  std::size_t image, channel;
};

/// In device memory: a forward pass, and a backward pass for what that or another one kept.
struct GroupCall {
  static constexpr float kEps = 0.1F;

  GroupPass pass;
  TypedBackend on;
  std::size_t images, channels;
  Values x, residual, grad_y, before, weight, bias;
  Operand x_memory, residual_memory, y, grad, grad_residual, saved, work, weight_memory,
      bias_memory, grad_weight, grad_bias;

  GroupCall(const GroupPass& p, const TypedBackend& where)
      : pass(p),
        on(where),
        images(static_cast<std::size_t>(p.shape.batch())),
        channels(static_cast<std::size_t>(p.shape.channels())),
        x(drawn(1, 1)),
        residual(on.random(p.shape, 3)),
        grad_y(on.random(p.shape, 2)),
        before(on.random(p.shape, 4)),
        weight(random_values(row(), 6)),
        bias(random_values(row(), 7)),
        x_memory(on, p.shape, x, p.margins),
        residual_memory(on, p.shape, residual, p.margins),
        y(on, p.shape, residual, p.margins),
        grad(on, p.shape, grad_y, p.margins),
        grad_residual(on, p.shape, before, p.margins),
        saved(on.backend, {p.shape.batch(), 3 * p.shape.channels()}),
        work(on.backend, {p.shape.batch(), 4 * p.shape.channels()}),
        weight_memory(on.backend, row(), weight),
        bias_memory(on.backend, row(), bias),
        grad_weight(on.backend, row(), Values(channels, 0.5F)),
        grad_bias(on.backend, row(), Values(channels, 0.25F)) {}

  Shape row() const { return {1, pass.shape.channels()}; }
  bool masks_by_y() const { return pass.relu && pass.residual; }
  Place place(std::size_t i) const { return {i / (x.size() / images), i % channels}; }
  std::size_t group_of(std::size_t c) const {
    return c * static_cast<std::size_t>(pass.groups) / channels;
  }
  double values_of_group() const {
    return static_cast<double>(x.size() / images) / static_cast<double>(pass.groups);
  }
  double gamma(std::size_t c) const { return pass.affine ? weight[c] : 1.0; }
  double beta(std::size_t c) const { return pass.affine ? bias[c] : 0.0; }
  AffineParameters affine() const {
    if (!pass.affine) return {};
    return {weight_memory.floats(), bias_memory.floats()};
  }

  void forward() {
    on->norms().group_norm_forward({.x = x_memory.tensor(),
                                    .residual = pass.residual ? residual_memory.tensor() : Tensor{},
                                    .y = y.tensor(),
                                    .affine = affine(),
                                    .groups = pass.groups,
                                    .eps = kEps,
                                    .eps_mode = pass.eps_mode,
                                    .relu = pass.relu,
                                    .saved = saved.floats(),
                                    .work = work.floats()});
  }

  /// grad_x takes the memory of grad_y.
  void backward(bool wants_x = true) {
    on->norms().group_norm_backward(
        {.x = x_memory.tensor(),
         .grad_y = grad.tensor(),
         .y = masks_by_y() ? y.tensor() : Tensor{},
         .affine = affine(),
         .groups = pass.groups,
         .relu = pass.relu,
         .saved = saved.floats(),
         .work = work.floats(),
         .grad_weight = pass.affine ? grad_weight.floats() : nullptr,
         .grad_bias = pass.affine ? grad_bias.floats() : nullptr,
         .grad_x = wants_x ? grad.tensor() : Tensor{},
         .grad_residual = pass.residual && wants_x ? grad_residual.tensor() : Tensor{},
         .accumulate_residual = pass.accumulate});
  }

 private:
  /// Channels and images of other means.
  Values drawn(std::uint32_t seed, float apart) const {
    Values values = on.random(pass.shape, seed);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto [n, c] = place_in(i, values.size());
      values[i] += apart * static_cast<float>((n + c) % 7);
    }
    return on.stored(values);
  }
  Place place_in(std::size_t i, std::size_t size) const {
    return {i / (size / images), i % channels};
  }
};

/// Sums over the groups of all images, [images, groups].
template <typename Value>
Doubles group_sums(const GroupCall& call, const Value& value) {
  const auto groups = static_cast<std::size_t>(call.pass.groups);
  Doubles sums(call.images * groups);
  for (std::size_t i = 0; i < call.x.size(); ++i) {
    const Place at = call.place(i);
    sums[at.image * groups + call.group_of(at.channel)] += value(i, at);
  }
  return sums;
}

struct GroupMoments {
  Doubles mean, var;  // [images, groups]
};

GroupMoments moments_of(const GroupCall& call) {
  const double share = 1 / call.values_of_group();
  const auto groups = static_cast<std::size_t>(call.pass.groups);
  GroupMoments of;
  of.mean = group_sums(call, [&](std::size_t i, Place) { return share * call.x[i]; });
  of.var = group_sums(call, [&](std::size_t i, Place at) {
    const double d = call.x[i] - of.mean[at.image * groups + call.group_of(at.channel)];
    return share * d * d;
  });
  return of;
}

void check_forward(GroupCall& call) {
  const GroupMoments moments = moments_of(call);
  const std::size_t groups = static_cast<std::size_t>(call.pass.groups);
  const bool clamp = call.pass.eps_mode == EpsMode::kClamp;
  const double eps = GroupCall::kEps;
  const auto invstd = [&](double var) {
    return 1 / std::sqrt(clamp ? std::max(var, eps) : var + eps);
  };
  Doubles y(call.x.size()), saved(call.images * 3 * call.channels);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const auto [n, c] = call.place(i);
    const std::size_t group = n * groups + call.group_of(c);
    const double scale = invstd(moments.var[group]);
    y[i] = (call.x[i] - moments.mean[group]) * scale * call.gamma(c) + call.beta(c);
    if (call.pass.residual) y[i] += static_cast<double>(call.residual[i]);
    if (call.pass.relu) y[i] = std::max(y[i], 0.0);
    double* of_image = saved.data() + n * 3 * call.channels;
    of_image[c] = moments.mean[group];
    of_image[call.channels + c] = scale;
    of_image[2 * call.channels + c] = clamp && moments.var[group] <= eps ? 0 : scale * scale;
  }
  call.forward();
  CHECK(relative_error(call.y, y) < kTolerance);
  CHECK(call.y.margins_untouched());
  CHECK(relative_error(call.saved, saved) < kTolerance);
}

/// By the formula, of what the forward pass kept.
void check_backward(GroupCall& call) {
  const GroupPass& pass = call.pass;
  const Values saved = call.saved.get(), y = call.y.get();
  const std::size_t channels = call.channels, groups = static_cast<std::size_t>(pass.groups);
  const auto of_image = [&](int which, Place at) {
    return static_cast<double>(
        saved[(3 * at.image + static_cast<std::size_t>(which)) * channels + at.channel]);
  };
  const auto centred = [&](std::size_t i, Place at) { return call.x[i] - of_image(0, at); };
  const auto grad = [&](std::size_t i, Place at) {
    const double plain =
        centred(i, at) * call.gamma(at.channel) * of_image(1, at) + call.beta(at.channel);
    const double output = call.masks_by_y() ? static_cast<double>(y[i]) : plain;
    return pass.relu && output <= 0 ? 0.0 : static_cast<double>(call.grad_y[i]);
  };
  const double share = 1 / call.values_of_group();
  const Doubles sums = group_sums(
      call, [&](std::size_t i, Place at) { return share * call.gamma(at.channel) * grad(i, at); });
  const Doubles products = group_sums(call, [&](std::size_t i, Place at) {
    return share * call.gamma(at.channel) * grad(i, at) * centred(i, at);
  });
  Doubles x, residual, weight(channels, 0.5), bias(channels, 0.25);
  for (std::size_t i = 0; i < call.x.size(); ++i) {
    const Place at = call.place(i);
    const std::size_t group = at.image * groups + call.group_of(at.channel);
    x.push_back(of_image(1, at) * (call.gamma(at.channel) * grad(i, at) - sums[group] -
                                   centred(i, at) * of_image(2, at) * products[group]));
    residual.push_back(grad(i, at) + (pass.accumulate ? static_cast<double>(call.before[i]) : 0.0));
    weight[at.channel] += grad(i, at) * centred(i, at) * of_image(1, at);
    bias[at.channel] += grad(i, at);
  }
  call.backward(false);
  if (pass.affine) {
    CHECK(relative_error(call.grad_weight, weight) < kSumTolerance);
    CHECK(relative_error(call.grad_bias, bias) < kSumTolerance);
  }
  call.backward();
  CHECK(relative_error(call.grad, x) < kTolerance);
  CHECK(call.grad.margins_untouched());
  if (!pass.residual) return;
  CHECK(relative_error(call.grad_residual, residual) < kTolerance);
  CHECK(call.grad_residual.margins_untouched());
}

void check_pass(const GroupPass& pass) {
  CAPTURE(to_string(pass.shape));
  CAPTURE(pass.groups);
  for_each_type([&](const TypedBackend& on) {
    GroupCall call(pass, on);
    check_forward(call);
    check_backward(call);
  });
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

TEST_CASE("group norm is the formula's, with every combination of options") {
  for (int bits = 0; bits < 32; ++bits) {
    CAPTURE(bits);
    check_pass({.shape = {2, 9, 13, 12},
                .groups = 4,
                .relu = (bits & 1) != 0,
                .residual = (bits & 2) != 0,
                .affine = (bits & 4) != 0,
                .accumulate = (bits & 8) != 0,
                .eps_mode = (bits & 16) != 0 ? EpsMode::kClamp : EpsMode::kAdd});
  }
}

TEST_CASE("group norm for shapes of every rank, inside wider tensors") {
  for (const Shape& shape : {Shape{1, 6}, Shape{5, 30, 66}, Shape{3, 40, 33, 6},
                             Shape{2, 3, 4, 5, 36}, Shape{1, 20, 20, 144}}) {
    for (const Margins margins : {Margins{}, Margins{3, 5}}) {
      check_pass({.shape = shape, .groups = 3, .relu = true, .margins = margins});
      check_pass({.shape = shape, .groups = 1, .margins = margins});
      if (shape.rank() > 2) {
        check_pass({.shape = shape, .groups = shape.channels(), .residual = true});
      }
    }
  }
}

TEST_CASE("group norm: an image has the bits that it has alone, and gradients a tree") {
  const GroupPass all{.shape = {5, 20, 33, 70}, .groups = 5, .relu = true, .residual = true};
  for_each_type([&](const TypedBackend& on) {
    GroupCall together(all, on);
    together.forward();
    together.backward();
    GroupPass one = all;
    one.shape = all.shape.with_batch(1);
    Doubles sums;
    std::vector<Values> weights;
    for (std::size_t image = 0; image < together.images; ++image) {
      GroupCall alone(one, on);
      const auto of = [&](const Values& values, std::size_t count) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(image * count);
        return Values(begin, begin + static_cast<std::ptrdiff_t>(count));
      };
      const auto size = static_cast<std::size_t>(one.shape.elements());
      alone.x_memory.set(of(together.x, size));
      alone.residual_memory.set(of(together.residual, size));
      alone.grad.set(of(together.grad_y, size));
      alone.grad_weight.set(Values(alone.channels));
      alone.forward();
      alone.backward();
      CHECK(alone.y.get() == of(together.y.get(), size));
      CHECK(alone.grad.get() == of(together.grad.get(), size));
      CHECK(alone.saved.get() == of(together.saved.get(), 3 * alone.channels));
      weights.push_back(alone.grad_weight.get());
    }
    Values tree(together.channels);
    for (std::size_t c = 0; c < tree.size(); ++c) {
      const float half = (weights[0][c] + weights[1][c]) + (weights[2][c] + weights[3][c]);
      tree[c] = 0.5F + (half + weights[4][c]);
    }
    CHECK(together.grad_weight.get() == tree);
  });
}

// More images than a launch takes.
TEST_CASE("group norm of very many images") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    GroupCall call({.shape = {260, 1, 4}, .groups = 1}, TypedBackend(*named.backend));
    check_forward(call);
    check_backward(call);
  }
}

TEST_CASE("groups are equal, and have two values") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    GroupCall call({.shape = {1, 3, 4}, .groups = 3}, TypedBackend(*named.backend));
    CHECK_THROWS_WITH_AS(call.forward(), doctest::Contains("4 channels are no 3 equal groups"),
                         Error);
    GroupCall single({.shape = {2, 4}, .groups = 4}, TypedBackend(*named.backend));
    CHECK_THROWS_WITH_AS(single.forward(), doctest::Contains("at least 2 values, got 1"), Error);
    GroupCall none({.shape = {0, 3, 4}, .groups = 2}, TypedBackend(*named.backend));
    none.forward();
    none.backward();
    CHECK(none.grad_weight.get() == Values(4, 0.5F));
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
