// GroupNorm and its relatives against loops in double: outputs, gradients, and that an image is
// normalised by nothing but itself.

#include "nn/norms/group_norm_layer.h"

#include "nn/harness.h"
#include "nn/norms/batch_norm_layer.h"
#include "support/gradient_check.h"

namespace lockstep::test {
namespace {

constexpr double kForwardTolerance = 2e-6;
constexpr double kGradientTolerance = 1e-5;

/// y of every image and group of channels by itself, from the definition.
struct PlainGroupNorm {
  Shape shape;
  std::int64_t groups = 1;
  double eps = 1e-5F;
  bool clamp = false, residual = false, relu = false;
  Doubles x = {}, weight = {}, bias = {};  // no weight: not affine

  Doubles forward() const {
    Doubles y(x.size());
    for (std::int64_t n = 0; n < shape.batch(); ++n) {
      for (std::int64_t group = 0; group < groups; ++group) normalize(n, group, y);
    }
    return y;
  }

 private:
  /// body(index, channel) for every value of the group.
  template <typename Body>
  void for_each(std::int64_t n, std::int64_t group, const Body& body) const {
    const std::int64_t channels = shape.channels();
    const std::int64_t width = channels / groups;
    for (std::int64_t row = 0; row < shape.rows_per_sample(); ++row) {
      for (std::int64_t c = group * width; c < (group + 1) * width; ++c) {
        body(static_cast<std::size_t>((n * shape.rows_per_sample() + row) * channels + c),
             static_cast<std::size_t>(c));
      }
    }
  }

  void normalize(std::int64_t n, std::int64_t group, Doubles& y) const {
    double count = 0, mean = 0, var = 0;
    for_each(n, group, [&](std::size_t i, std::size_t) { count += 1, mean += x[i]; });
    mean /= count;
    for_each(n, group,
             [&](std::size_t i, std::size_t) { var += (x[i] - mean) * (x[i] - mean) / count; });
    const double invstd = 1 / std::sqrt(clamp ? std::max(var, eps) : var + eps);
    for_each(n, group, [&](std::size_t i, std::size_t c) {
      double value = (x[i] - mean) * invstd;
      if (!weight.empty()) value = value * weight[c] + bias[c];
      if (residual) value += x[i];
      y[i] = relu ? std::max(value, 0.0) : value;
    });
  }
};

struct GroupCase {
  NormLayer norm;
  Shape shape = {};
  std::int64_t groups = 1;
  bool residual = false, relu = false;
  std::int64_t planned = 0;  // largest batch; 0: the shape's
};

PlainGroupNorm plain(const GroupCase& test, const TestNetwork& net, const Floats& input) {
  PlainGroupNorm reference{.shape = test.shape, .groups = test.groups};
  reference.eps = static_cast<double>(test.norm.options.eps);
  reference.clamp = test.norm.options.eps_mode == EpsMode::kClamp;
  reference.residual = test.residual;
  reference.relu = test.relu;
  reference.x = Doubles(input.begin(), input.end());
  if (!test.norm.options.affine) return reference;
  const ReferenceNet parameters = net.reference();
  reference.weight = parameters.parameters.at("norm.weight");
  reference.bias = parameters.parameters.at("norm.bias");
  return reference;
}

Describe describe(const GroupCase& test) {
  return [test](NetworkBuilder& net, Value* x) {
    return test.norm(net, x, "norm", {.relu = test.relu, .residual = test.residual ? x : nullptr});
  };
}

void check_against_plain(const GroupCase& test) {
  CAPTURE(to_string(test.shape));
  CAPTURE(test.groups);
  const std::int64_t planned = test.planned == 0 ? test.shape.batch() : test.planned;
  TestNetwork net(describe(test), test.shape.with_batch(planned));
  net.network->set_batch(test.shape.batch());
  const Floats input = random_floats(test.shape.elements(), 21, 2.0F);
  PlainGroupNorm reference = plain(test, net, input);
  StepResult result = net.step(input, 22);
  CHECK(relative_error(result.output, reference.forward()) < kForwardTolerance);

  const Floats grad_y = random_floats(test.shape.elements(), 22);
  const auto projected = [&] {
    const Doubles y = reference.forward();
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * static_cast<double>(grad_y[i]);
    return sum;
  };
  CHECK(relative_error(result.input_grad, numerical_gradient(reference.x, projected, 1e-6)) <
        kGradientTolerance);
  if (reference.weight.empty()) return;
  CHECK(relative_error(result.grads.at("norm.weight"),
                       numerical_gradient(reference.weight, projected, 1e-6)) < kGradientTolerance);
  CHECK(relative_error(result.grads.at("norm.bias"),
                       numerical_gradient(reference.bias, projected, 1e-6)) < kGradientTolerance);
}

}  // namespace

TEST_CASE("group norm: any rank, groups and batch, against plain loops") {
  for (const Shape& shape : {Shape{3, 18}, Shape{4, 5, 6}, Shape{3, 4, 5, 6}, Shape{1, 9, 7, 18},
                             Shape{2, 2, 3, 2, 12}}) {
    for (const int groups : {1, 2, 3, 6}) {
      check_against_plain({.norm = GroupNorm(groups), .shape = shape, .groups = groups});
    }
    check_against_plain({.norm = LayerNorm(), .shape = shape, .groups = 1});
    if (shape.rank() == 2) continue;
    check_against_plain({.norm = InstanceNorm(), .shape = shape, .groups = shape.channels()});
  }
}

TEST_CASE("group norm: with a ReLU, a residual, eps clamped, and no gamma and beta") {
  for (int bits = 0; bits < 16; ++bits) {
    CAPTURE(bits);
    BatchNormOptions options;
    options.affine = (bits & 1) != 0;
    options.eps_mode = (bits & 2) != 0 ? EpsMode::kClamp : EpsMode::kAdd;
    options.eps = (bits & 2) != 0 ? 3.9F : 1e-3F;  // some groups are above, some below
    check_against_plain({.norm = GroupNorm(3, options),
                         .shape = {5, 4, 3, 6},
                         .groups = 3,
                         .residual = (bits & 4) != 0,
                         .relu = (bits & 8) != 0});
  }
}

TEST_CASE("group norm: batches smaller than planned") {
  for (const std::int64_t batch : {1, 3, 6}) {
    check_against_plain(
        {.norm = GroupNorm(2), .shape = {batch, 3, 5, 4}, .groups = 2, .relu = true, .planned = 7});
  }
}

TEST_CASE("group norm: an image's bits are its own, in training and in evaluation") {
  const GroupCase test{.norm = GroupNorm(4), .shape = {5, 6, 7, 20}, .groups = 4, .relu = true};
  TestNetwork whole(describe(test), test.shape);
  TestNetwork one(describe(test), test.shape.with_batch(1));
  const Floats input = random_floats(test.shape.elements(), 3);
  const Floats output = whole.step(input, 4).output;
  CHECK(whole.step(input, 4, {.training = false}).output == output);
  const std::ptrdiff_t size = 6 * 7 * 20;
  for (std::ptrdiff_t n = 0; n < 5; ++n) {
    const auto image = [&](const Floats& all) {
      return Floats(all.begin() + n * size, all.begin() + (n + 1) * size);
    };
    CHECK(one.step(image(input), 4).output == image(output));
  }
}

TEST_CASE("group norm: the state dict is gamma and beta, as torch.nn.GroupNorm's") {
  const TestNetwork net(describe({.norm = GroupNorm(2)}), {2, 3, 3, 4});
  const TensorMap tensors = state_dict(net.store, *net.backend);
  CHECK(tensors.size() == 2);
  CHECK(tensors.contains("norm.weight"));
  CHECK(tensors.contains("norm.bias"));
}

TEST_CASE("group norm: channels that are no multiple, and groups of one value") {
  const auto built = [](const NormLayer& norm, const Shape& shape) {
    TestNetwork(describe({.norm = norm}), shape);
  };
  CHECK_THROWS_WITH_AS(built(GroupNorm(32), {2, 3, 3, 48}),
                       doctest::Contains("norm: 48 channels cannot be cut into 32 equal groups"),
                       ConfigError);
  CHECK_THROWS_WITH_AS(built(GroupNorm(0), {2, 3, 3, 48}),
                       doctest::Contains("groups must be at least 1"), ConfigError);
  CHECK_THROWS_WITH_AS(built(InstanceNorm(), {2, 5}),
                       doctest::Contains("norm: the statistics of 5 groups need more than one"),
                       ConfigError);
}

}  // namespace lockstep::test
