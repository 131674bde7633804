// Whole small networks: outputs against a naive network in double, and every gradient against
// central differences of that network, through a random projection of the output.

#include "lockstep/nn/elementwise_layer.h"
#include "nn/harness.h"
#include "support/gradient_check.h"

namespace lockstep::test {
namespace {

using Run = std::function<ReferenceTensor(ReferenceNet&, const ReferenceTensor&)>;

double projection(const ReferenceTensor& y, const Floats& weights) {
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) sum += y.values[i] * weights[i];
  return sum;
}

constexpr double kStep = 1e-6;  // of central differences in double

struct Check {
  Shape input;
  Describe describe;
  Run run;
  std::vector<std::int64_t> slices;  // of BatchNorm; empty: running statistics
  BatchNormOptions options = {};
  StepContext context = {};
};

void check_gradients(const Check& check) {
  TestNetwork net(check.describe, check.input, {true, true}, check.options);
  const Floats input = random_floats(check.input.elements(), 77);
  ReferenceNet reference = net.reference();
  reference.slices = check.slices;
  reference.clamp = check.options.eps_mode == EpsMode::kClamp;
  reference.eps = check.options.eps;
  ReferenceTensor x{check.input, Doubles(input.begin(), input.end())};
  const StepResult result = net.step(input, 5, check.context);
  const Floats weights = random_floats(net.network->output().shape.elements(), 5);
  const auto f = [&] { return projection(check.run(reference, x), weights); };

  CHECK(relative_error(result.output, check.run(reference, x).values) < 1e-5);
  CHECK(relative_error(result.input_grad, numerical_gradient(x.values, f, kStep)) < 1e-4);
  for (const auto& [name, grad] : result.grads) {
    CAPTURE(name);
    CHECK(relative_error(grad, numerical_gradient(reference.parameters.at(name), f, kStep)) < 1e-4);
  }
}

/// The same description for both kinds of network.
template <typename Function>
Check make_check(const Shape& input, const Function& describe) {
  return {input,
          [=](NetworkBuilder& net, Value* x) { return describe(net, x); },
          [=](ReferenceNet& net, const ReferenceTensor& x) { return describe(net, x); },
          {input.batch()}};
}

}  // namespace

TEST_CASE("gradients of convolutions, pooling and upsampling") {
  check_gradients(make_check({2, 7, 6, 3}, [](auto& net, auto x) {
    x = net.conv2d(x, "a", {.out_channels = 4, .kernel = 3, .padding = 1, .bias = true});
    x = net.relu(net.max_pool2d(x, PoolGeometry{}));
    x = net.conv2d(
        x, "b",
        {.out_channels = 6, .kernel = 3, .stride = 2, .padding = 2, .dilation = 2, .groups = 2});
    x = net.avg_pool2d(x, PoolGeometry{2, 2, 1, 1, 1, 1});
    return net.upsample_bilinear(x, 5, 7, false);
  }));
  check_gradients(make_check({1, 4, 5, 2}, [](auto& net, auto x) {
    auto pooled =
        net.conv2d(net.adaptive_avg_pool2d(x, 1, 1), "pool", {.out_channels = 3, .bias = true});
    return net.concat({net.upsample_bilinear(pooled, 4, 5, true), x});
  }));
  check_gradients(make_check({2, 7, 6, 3}, [](auto& net, auto x) {
    auto pooled = net.adaptive_avg_pool2d(net.conv2d(x, "a", {.out_channels = 4}), 3, 4);
    return net.add(pooled, net.adaptive_avg_pool2d(net.conv2d(x, "b", {.out_channels = 4}), 3, 4));
  }));
}

TEST_CASE("gradients of activations") {
  for (const ActivationKind kind :
       {ActivationKind::kRelu, ActivationKind::kRelu6, ActivationKind::kLeakyRelu,
        ActivationKind::kSigmoid, ActivationKind::kHardsigmoid, ActivationKind::kTanh,
        ActivationKind::kSilu, ActivationKind::kHardswish, ActivationKind::kGelu,
        ActivationKind::kGeluTanh}) {
    CAPTURE(to_string(kind));
    // The first one alone reads its input, which another layer reads after it; wide inputs.
    check_gradients(make_check({2, 4, 5, 3}, [kind](auto& net, auto x) {
      auto wide = net.conv2d(x, "a", {.out_channels = 7, .kernel = 3, .padding = 1});
      wide = net.add(net.add(wide, wide), net.add(wide, wide));
      auto y = net.activation(wide, {kind, 0.125F});
      y = net.concat({net.activation(net.conv2d(y, "b", {.out_channels = 2}), {kind, 0.5F}), y});
      return net.add(net.conv2d(y, "c", {.out_channels = 7}), wide);
    }));
  }
}

TEST_CASE("gradients of PReLU, with a slope for each channel and with one") {
  for (const bool per_channel : {true, false}) {
    CAPTURE(per_channel);
    check_gradients(make_check({3, 4, 5, 3}, [per_channel](auto& net, auto x) {
      auto y = net.prelu(net.conv2d(x, "a", {.out_channels = 70}), "slope", per_channel);
      y = net.conv2d(y, "b", {.out_channels = 70, .groups = 70});  // few weights to vary
      return net.add(net.prelu(y, "slope", per_channel), y);
    }));
  }
}

namespace {

/// PReLU, and the cube of an element, as a user of the library would write them.
struct OwnSlope {
  static constexpr float kInitial = 0.25F;
  float operator()(float x, float slope) const { return x > 0 ? x : slope * x; }
  float gradient(float x, float slope, float grad_y) const {
    return x > 0 ? grad_y : slope * grad_y;
  }
  float parameter_gradient(float x, float, float grad_y) const { return x > 0 ? 0 : x * grad_y; }
};

struct Cube {
  float operator()(float x) const { return x * x * x; }
  float gradient(float x, float grad_y) const { return 3 * x * x * grad_y; }
};

}  // namespace

TEST_CASE("a layer of one's own that has a parameter computes what PReLU does") {
  const auto of = [](const auto& declare) {
    return TestNetwork(
        [&](NetworkBuilder& net, Value* x) {
          Value* y = declare(net, net.conv2d(x, "a", {.out_channels = 70}));
          y = net.concat({net.conv2d(y, "b", {.out_channels = 70}), y});
          return declare(net, net.add(net.slice_channels(y, 0, 70), net.slice_channels(y, 70, 70)));
        },
        {3, 4, 5, 3});
  };
  TestNetwork own =
      of([](NetworkBuilder& net, Value* x) { return elementwise<OwnSlope>(net, x, "slope"); });
  TestNetwork built_in = of([](NetworkBuilder& net, Value* x) { return net.prelu(x, "slope"); });
  const Floats input = random_floats(3 * 4 * 5 * 3, 8);
  const GradientPart parts[] = {{0, 3, nullptr}};
  const StepResult result = own.step(input, 9, {.gradient_parts = parts});
  const StepResult expected = built_in.step(input, 9);
  const auto close = [](const Floats& a, const Floats& b) {
    return relative_error(a, Doubles(b.begin(), b.end())) < 1e-6;
  };
  CHECK(close(result.output, expected.output));
  CHECK(close(result.input_grad, expected.input_grad));
  for (const auto& [name, grad] : result.grads) CHECK(close(grad, expected.grads.at(name)));
  const Parameter* slope = own.store.find("slope.weight");
  CHECK(slope->initial.values(slope->name, 3, 0) == Floats(3, 0.25F));
}

TEST_CASE("gradients of a layer of one's own without a parameter") {
  check_gradients({{2, 4, 5, 3},
                   [](NetworkBuilder& net, Value* x) {
                     Value* y = net.conv2d(x, "a", {.out_channels = 4});
                     return net.add(elementwise<Cube>(net, y, "cube"), y);
                   },
                   [](ReferenceNet& net, const ReferenceTensor& x) {
                     const auto y = net.conv2d(x, "a", {.out_channels = 4});
                     return net.add(net.mul(net.mul(y, y), y), y);
                   },
                   {2}});
}

TEST_CASE("gradients of a squeeze-and-excite block") {
  check_gradients(make_check({2, 5, 4, 3}, [](auto& net, auto x) {
    auto y = net.conv2d(x, "a", {.out_channels = 6, .kernel = 3, .padding = 1});
    auto gate = net.conv2d(net.adaptive_avg_pool2d(y, 1, 1), "squeeze", {.out_channels = 2});
    gate = net.conv2d(net.activation(gate, ActivationKind::kSilu), "excite", {.out_channels = 6});
    return net.mul(y, net.activation(gate, ActivationKind::kSigmoid));
  }));
}

TEST_CASE("gradients of sums, differences and products with operands of all shapes") {
  check_gradients(make_check({2, 3, 4, 3}, [](auto& net, auto x) {
    auto a = net.conv2d(x, "a", {.out_channels = 5});
    auto b = net.conv2d(x, "b", {.out_channels = 5});
    auto plane = net.conv2d(x, "plane", {.out_channels = 1});
    auto row = net.adaptive_avg_pool2d(b, 1, 1), one = net.adaptive_avg_pool2d(plane, 1, 1);
    auto y = net.mul(net.sub(a, b), net.add(a, row));
    y = net.add(net.mul(y, plane), net.sub(net.mul(b, one), plane));
    y = net.sub(net.sub(net.mul(y, y), row), one);  // one value as both operands
    return net.add(y, net.add(plane, plane));
  }));
}

TEST_CASE("gradients of softmax and of slices of channels") {
  check_gradients(make_check({2, 3, 4, 3}, [](auto& net, auto x) {
    auto y = net.conv2d(x, "a", {.out_channels = 7});
    auto first = net.softmax(net.slice_channels(y, 0, 3));
    auto rest = net.slice_channels(y, 2, 5);  // shares a channel
    return net.concat({net.softmax(rest), net.slice_channels(y, 6, 1), first});
  }));
}

TEST_CASE("gradients of transposed convolutions") {
  for (const ConvTranspose2dOptions& options :
       {ConvTranspose2dOptions{.out_channels = 5, .bias = true},
        ConvTranspose2dOptions{
            .out_channels = 4, .kernel = 3, .stride = 2, .padding = 1, .output_padding = 1},
        ConvTranspose2dOptions{.out_channels = 6,
        .kernel = 3,
        .stride = 3,
        .padding = 2,
        .output_padding = 2,
        .dilation = 2,
        .groups = 2,
        .bias = true}}) {
    CAPTURE(options.kernel);
    CAPTURE(options.groups);
    check_gradients(make_check({3, 3, 4, 3}, [options](auto& net, auto x) {
      auto y = net.conv2d(x, "a", {.out_channels = 4, .bias = true});
      auto wide = net.conv_transpose2d(y, "up", options);
      return net.conv2d(net.relu(wide), "b", {.out_channels = 2, .kernel = 3});
    }));
  }
}

TEST_CASE("gradients of sums over all samples") {
  check_gradients(make_check({3, 4, 3, 2}, [](auto& net, auto x) {
    auto own = net.relu(net.conv2d(x, "a", {.out_channels = 4}));
    auto all =
        net.conv2d(net.all_reduce(net.adaptive_avg_pool2d(own, 1, 1)), "b", {.out_channels = 4});
    auto y = net.add(own, net.upsample_bilinear(all, 4, 3, false));
    return net.add(net.relu(y), net.all_reduce(own));  // which takes a gradient from two
  }));
}

TEST_CASE("gradients of a small U-Net with batch statistics") {
  Check check = make_check({3, 6, 4, 3}, [](auto& net, auto x) {
    auto skip = net.batch_norm_relu(
        net.conv2d(x, "e0", {.out_channels = 4, .kernel = 3, .padding = 1}), "e0.bn");
    auto y = net.max_pool2d(skip, PoolGeometry{});
    y = net.batch_norm_relu(net.conv2d(y, "e1", {.out_channels = 5, .kernel = 3, .padding = 1}),
                            "e1.bn");
    y = net.concat({skip, net.upsample_bilinear(y, 6, 4, false)});
    y = net.batch_norm_relu(net.conv2d(y, "d0", {.out_channels = 4, .kernel = 3, .padding = 1}),
                            "d0.bn");
    return net.conv2d(y, "head", {.out_channels = 3, .bias = true});
  });
  check.options.eps = 1e-3F;
  check_gradients(check);
  SUBCASE("ghost slices: 2 of 3 samples and 1") {
    check.options.mode = BatchNormMode::kGhost;
    check.options.virtual_devices = 2;
    check.slices = {2, 1};
    check_gradients(check);
  }
  SUBCASE("running statistics are constants in the gradient") {
    check.slices = {};
    check.context.training = false;
    check_gradients(check);
  }
  SUBCASE("clamped variance") {
    check.options.eps_mode = EpsMode::kClamp;
    check.options.eps = 0.3F;  // above some channels' variance and below others'
    check_gradients(check);
  }
}

TEST_CASE("gradients where a layer is called twice and values have several consumers") {
  check_gradients(make_check({2, 5, 4, 3}, [](auto& net, auto x) {
    const Conv2dOptions conv{.out_channels = 3, .kernel = 3, .padding = 1};
    auto a = net.batch_norm_relu(net.conv2d(x, "shared", conv), "bn");
    auto b = net.batch_norm_relu(net.conv2d(a, "shared", conv), "bn");
    auto c = net.conv2d(a, "other", {.out_channels = 3});
    auto d = net.add(net.add(a, b), net.add(c, c));
    return net.concat({net.relu(d), a, net.conv2d(d, "last", {.out_channels = 2})});
  }));
}

TEST_CASE("gradients of residual blocks") {
  Check check = make_check({2, 4, 4, 3}, [](auto& net, auto x) {
    const Conv2dOptions conv{.out_channels = 4, .kernel = 3, .padding = 1};
    auto a = net.batch_norm(net.conv2d(x, "a", conv), "a.bn");
    auto b = net.batch_norm_add_relu(net.conv2d(a, "b", conv), a, "b.bn");
    auto c = net.batch_norm_add_relu(b, b, "c.bn");  // one value as both inputs
    return net.add(c, net.batch_norm_add_relu(a, c, "d.bn"));
  });
  check_gradients(check);
  check.options.mode = BatchNormMode::kGhost;
  check.options.virtual_devices = 2;
  check.slices = {1, 1};
  check_gradients(check);
}

TEST_CASE("gradients of frozen BatchNorm inside training") {
  const auto describe = [](auto& net, auto x, const auto& frozen) {
    auto a = net.batch_norm_relu(net.conv2d(x, "a", {.out_channels = 4}), "a.bn");
    auto b = frozen(net, net.conv2d(a, "b", {.out_channels = 4}));
    return net.conv2d(b, "c", {.out_channels = 2});
  };
  const auto layer = [](NetworkBuilder& net, Value* x) {
    return FrozenBatchNorm()(net, x, "b.bn", {.relu = true});
  };
  const auto reference = [](ReferenceNet& net, const ReferenceTensor& x) {
    return net.batch_norm(x, "b.bn", {true, nullptr, true});
  };
  check_gradients(
      {{3, 2, 3, 2},
       [=](NetworkBuilder& net, Value* x) { return describe(net, x, layer); },
       [=](ReferenceNet& net, const ReferenceTensor& x) { return describe(net, x, reference); },
       {3}});
}

TEST_CASE("gradients of nested concatenations") {
  check_gradients(make_check({2, 3, 4, 2}, [](auto& net, auto x) {
    auto a = net.relu(net.conv2d(x, "a", {.out_channels = 3}));
    auto b = net.relu(net.conv2d(x, "b", {.out_channels = 2}));
    auto inner = net.concat({a, b});
    auto middle = net.batch_norm_relu(inner, "bn");
    auto outer = net.concat({inner, net.relu(b), middle});
    return net.conv2d(outer, "head", {.out_channels = 2, .bias = true});
  }));
}

}  // namespace lockstep::test
