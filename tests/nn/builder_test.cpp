// What a builder does with layers of a user's own and with mistakes: a mistake is an error with a
// name, on the line that makes it.

#include <cmath>
#include <limits>

#include "lockstep/nn/model.h"
#include "nn/harness.h"
#include "support/check_contains.h"
#include "support/count_allocations.h"
#include "support/errors.h"

namespace lockstep::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// A learnable constant: gives every sample its parameter, and has no input.
class ConstantLayer final : public Layer {
 public:
  ConstantLayer(const std::string& name, Value* output, Parameter* parameter)
      : Layer(name, {}, output), parameter_(parameter) {}

  std::vector<const Parameter*> parameters() const override { return {parameter_}; }
  LayerTraits traits() const override { return {.prefers_dense = true}; }
  void forward(Backend&, const StepContext&) override {
    const std::int64_t each = parameter_->elements;
    for (std::int64_t i = 0; i < output()->data.shape.elements(); ++i) {
      output()->data.floats()[i] = parameter_->value[i % each];
    }
  }
  void backward(Backend&, const StepContext&, std::span<const GradTarget> grads) override {
    CHECK(grads.empty());
    const std::int64_t each = parameter_->elements;
    for (std::int64_t i = 0; i < output()->grad.shape.elements(); ++i) {
      parameter_->grad[i % each] += output()->grad.floats()[i];
    }
  }

 private:
  Parameter* parameter_;
};

/// A layer that does nothing, between values of the test's choice.
class NoLayer final : public Layer {
 public:
  NoLayer(std::vector<Value*> inputs, Value* output, const LayerTraits& traits = {})
      : Layer("mine", std::move(inputs), output), traits_(traits) {}
  LayerTraits traits() const override { return traits_; }
  void forward(Backend&, const StepContext&) override {}
  void backward(Backend&, const StepContext&, std::span<const GradTarget>) override {}

 private:
  LayerTraits traits_;
};

Value* constant(NetworkBuilder& net, const Shape& shape, const Initial& initial) {
  Parameter& parameter =
      net.parameter("k", {shape.elements() / shape.batch()}, ParameterKind::kWeight, initial);
  return net.append(std::make_unique<ConstantLayer>("k", net.value("k", shape), &parameter));
}

/// The message of what declaring such a network throws.
std::string refusal(const std::function<Value*(NetworkBuilder& net, Value* x)>& describe) {
  const auto backend = make_backend(Device{}, 1);
  ParameterStore store;
  NetworkBuilder net(*backend, store);
  try {
    net.build(describe(net, net.input({2, 4, 4, 3})), {});
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

/// The values that a parameter of this kind is given.
Floats initially(const Shape& shape, ParameterKind kind, const std::string& name,
                 const std::function<Parameter&(ParameterStore&)>& declare) {
  const auto backend = make_backend(Device{}, 1);
  ParameterStore store;
  const Parameter& parameter = declare ? declare(store) : store.parameter(name, shape, kind);
  store.allocate(*backend);
  initialize_parameters(store, *backend, 3);
  return download(*backend, parameter.value, parameter.elements);
}

double deviation(const Floats& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

}  // namespace

TEST_CASE("a layer may have no input: a learnable constant") {
  const Shape shape{2, 4, 4, 3};
  for (const bool share_memory : {true, false}) {
    CAPTURE(share_memory);
    TestNetwork net(
        [&](NetworkBuilder& builder, Value* x) {
          return builder.add(x, constant(builder, x->shape, Initial::constant(0.25F)));
        },
        shape, {.training = true, .input_grad = true, .share_memory = share_memory});
    initialize_parameters(net.store, *net.backend, 1);
    const Floats input = random_floats(shape.elements(), 8);
    const StepResult result = net.step(input, 4);
    const Floats grad = random_floats(shape.elements(), 4);
    for (std::size_t i = 0; i < input.size(); ++i) CHECK(result.output[i] == input[i] + 0.25F);
    CHECK(result.input_grad == grad);
    const std::size_t each = input.size() / 2;
    for (std::size_t i = 0; i < each; ++i)
      CHECK(result.grads.at("k")[i] == grad[i] + grad[i + each]);
    net.network->set_batch(1);
    CHECK(net.step(Floats(each), 4).output == Floats(each, 0.25F));
  }
}

TEST_CASE("a network of a constant alone has outputs without a gradient of the input") {
  TestNetwork net(
      [](NetworkBuilder& builder, Value* x) {
        return constant(builder, x->shape,
                        Initial::of([](std::int64_t i) { return 0.5F * static_cast<float>(i); }));
      },
      {2, 1, 1, 3}, {.training = true, .input_grad = false});
  initialize_parameters(net.store, *net.backend, 1);
  CHECK(net.step(Floats(6), 4).output == Floats{0, 0.5F, 1, 0, 0.5F, 1});
}

TEST_CASE("values that nobody writes, and writes of what is another's, are errors with names") {
  const auto layer = [](std::vector<Value*> inputs, Value* output, const LayerTraits& traits = {}) {
    return std::make_unique<NoLayer>(std::move(inputs), output, traits);
  };
  check_contains(
      refusal([](auto& net, Value* x) { return net.add(x, net.value("nobody", x->shape)); }),
      "add_0 reads the value 'nobody', which no layer before it writes");
  check_contains(refusal([](auto& net, Value* x) {
                   return net.conv2d(net.value("nobody", x->shape), "c", {.out_channels = 2});
                 }),
                 "c reads the value 'nobody'");
  check_contains(refusal([](auto& net, Value* x) { return net.value("nobody", x->shape); }),
                 "output 'out' is a value that no layer of this network writes");
  Value foreign{"foreign", {2, 4, 4, 3}, {}, {}};
  check_contains(refusal([&](auto& net, Value*) { return net.relu(&foreign); }),
                 "relu_0: an input is no value of this network's builder");
  check_contains(refusal([&](auto& net, Value* x) { return net.append(layer({x}, &foreign)); }),
                 "mine: the output is no value of this network's builder");
  check_contains(refusal([&](auto& net, Value* x) { return net.append(layer({x}, x)); }),
                 "mine writes the value 'input', which another layer writes");
  check_contains(refusal([&](auto& net, Value* x) {
                   Value* y = net.relu(x);
                   return net.append(layer({x}, y));
                 }),
                 "mine writes the value 'relu_0', which another layer writes");
  check_contains(refusal([&](auto& net, Value* x) {
                   return net.append(layer({}, net.value("y", x->shape), {.reads_input = true}));
                 }),
                 "mine: its traits speak of input 0, and it has no input");
  const auto half = [&](const LayerTraits& traits) {
    return refusal([&](auto& net, Value* x) {
      return net.append(layer({net.relu(x), x}, net.value("y", {2, 4, 4, 2}), traits));
    });
  };
  check_contains(half({.grad_in_place = true}),
                 "mine: by its traits input 0 and the output share memory");
  check_contains(half({.forward_in_place = true}), "got [2, 4, 4, 3] and [2, 4, 4, 2]");
  check_contains(half({.concatenates = true}), "expected 2 of all inputs, got 6");
  check_contains(
      refusal([&](auto& net, Value* x) {
        return net.append(layer({x}, net.value("y", {2, 8, 2, 3}), {.concatenates = true}));
      }),
      "expected inputs like the output, [2, 8, 2, 3], got [2, 4, 4, 3]");
  for (const bool reads_again : {false, true}) {
    check_contains(refusal([&](auto& net, Value* x) {
                     Value* between = reads_again ? net.relu(x) : x;
                     Value* y = net.append(
                         layer({between}, net.value("y", x->shape), {.forward_in_place = true}));
                     return reads_again ? net.add(y, between) : y;
                   }),
                   reads_again ? "mine: it overwrites 'relu_0'" : "mine: it overwrites 'input'");
  }
  check_contains(refusal([](auto&, Value* x) { return x; }), "output 'out' is the network's input");
}

TEST_CASE("a null anywhere in a builder is an error") {
  using Call = std::function<Value*(NetworkBuilder&, Value*)>;
  const auto mine = [](NetworkBuilder& net, std::vector<Value*> inputs, Value* output) {
    return net.append(std::make_unique<NoLayer>(std::move(inputs), output));
  };
  const std::vector<Call> calls{
      [](auto& net, Value*) { return net.conv2d(nullptr, "c", {.out_channels = 2}); },
      [](auto& net, Value*) { return net.conv2d(nullptr, "c", ConvGeometry{}, false); },
      [](auto& net, Value*) { return net.linear(nullptr, "l", 2); },
      [](auto& net, Value*) { return net.batch_norm(nullptr, "bn"); },
      [](auto& net, Value*) { return SyncBatchNorm()(net, nullptr, "bn"); },
      [](auto& net, Value*) { return net.batch_norm_relu(nullptr, "bn"); },
      [](auto& net, Value* x) { return net.batch_norm_add_relu(nullptr, x, "bn"); },
      [](auto& net, Value*) { return net.relu(nullptr); },
      [](auto& net, Value*) { return net.max_pool2d(nullptr, {}); },
      [](auto& net, Value*) { return net.avg_pool2d(nullptr, {}); },
      [](auto& net, Value*) { return net.adaptive_avg_pool2d(nullptr, 1, 1); },
      [](auto& net, Value*) { return net.upsample_bilinear(nullptr, 2, 2, false); },
      [](auto& net, Value* x) { return net.upsample_bilinear(nullptr, x, false); },
      [](auto& net, Value* x) { return net.upsample_bilinear(x, nullptr, false); },
      [](auto& net, Value* x) {
        return net.concat({x, nullptr});
      },
      [](auto& net, Value*) { return net.concat({nullptr}); },
      [](auto& net, Value* x) { return net.add(x, nullptr); },
      [](auto& net, Value* x) { return net.add(nullptr, x); },
      [](auto& net, Value*) { return net.dropout(nullptr, 0.5F); },
      [](auto& net, Value*) { return net.all_reduce(nullptr); },
      [](auto& net, Value* x) { return net.reshape(nullptr, x->shape); },
      [](auto& net, Value*) { return net.append(nullptr); },
      [&](auto& net, Value* x) { return mine(net, {x}, nullptr); },
      [&](auto& net, Value* x) { return mine(net, {nullptr}, net.value("y", x->shape)); },
      [](auto&, Value*) { return nullptr; },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    CAPTURE(i);
    check_contains(refusal(calls[i]), "null");
  }
}

TEST_CASE("a builder that has built its network declares no more") {
  const auto backend = make_backend(Device{}, 1);
  ParameterStore store;
  NetworkBuilder net(*backend, store);
  CHECK_THROWS_WITH_AS(net.build(static_cast<Value*>(nullptr), {}), doctest::Contains("no input"),
                       Error);
  Value* x = net.input({2, 4, 4, 3});
  CHECK_THROWS_WITH_AS(net.build(Outputs{}, {}), doctest::Contains("the model returns none"),
                       ConfigError);
  const auto network = net.build(net.conv2d(x, "c", {.out_channels = 2}), {});
  const std::string told = "the network is built already";
  CHECK_THROWS_WITH_AS(net.relu(x), doctest::Contains(told.c_str()), Error);
  CHECK_THROWS_WITH_AS(net.batch_norm(x, "bn"), doctest::Contains(told.c_str()), Error);
  CHECK_THROWS_WITH_AS(net.conv2d(x, "d", {.out_channels = 2}), doctest::Contains(told.c_str()),
                       Error);
  CHECK_THROWS_WITH_AS(net.build(x, {}), doctest::Contains(told.c_str()), Error);
}

TEST_CASE("numbers of a norm layer that are out of range are errors of the configuration") {
  const auto declare = [](const BatchNormOptions& options) {
    const auto backend = make_backend(Device{}, 1);
    ParameterStore store;
    NetworkBuilder net(*backend, store);
    net.batch_norm(net.input({2, 4, 4, 3}), "bn", NormLayer(options));
  };
  CHECK_NOTHROW(declare({}));
  CHECK_NOTHROW(declare({.momentum = std::nullopt}));
  for (const float eps : {0.0F, -1.0F, kNaN, std::numeric_limits<float>::infinity()}) {
    CHECK_THROWS_WITH_AS(declare({.eps = eps}), doctest::Contains("bn: eps"), ConfigError);
  }
  for (const double momentum : {-0.1, 1.1, static_cast<double>(kNaN)}) {
    CHECK_THROWS_WITH_AS(declare({.momentum = momentum}), doctest::Contains("bn: momentum"),
                         ConfigError);
  }
}

TEST_CASE("initial values are those of the kind, or of one's own choice, and finite") {
  const auto own = [](const Shape& shape, const Initial& initial) {
    return initially({}, {}, {}, [&](ParameterStore& store) -> Parameter& {
      return store.parameter("p.weight", shape, ParameterKind::kWeight, initial);
    });
  };
  const auto kind = [](const Shape& shape, ParameterKind which, const std::string& name) {
    return initially(shape, which, name, nullptr);
  };
  CHECK(kind({3}, ParameterKind::kNorm, "n.weight") == Floats{1, 1, 1});
  CHECK(kind({3}, ParameterKind::kNorm, "n.bias") == Floats{0, 0, 0});
  CHECK(kind({3}, ParameterKind::kBias, "c.bias") == Floats{0, 0, 0});
  CHECK(kind({3}, ParameterKind::kWeight, "p.weight") == Floats{0, 0, 0});
  const Floats drawn = kind({64, 8, 3, 3}, ParameterKind::kWeight, "c.weight");
  CHECK(deviation(drawn) == doctest::Approx(std::sqrt(2.0 / 72)).epsilon(0.05));
  CHECK(drawn != own({64, 8, 3, 3}, Initial::kaiming_normal(72)));  // of another name
  CHECK(own({2}, Initial::constant(0.25F)) == Floats{0.25F, 0.25F});
  CHECK(deviation(own({4096}, Initial::xavier_normal(30, 20))) ==
        doctest::Approx(0.2).epsilon(0.05));
  CHECK(own({3}, Initial::of([](std::int64_t i) { return static_cast<float>(i) - 1; })) ==
        Floats{-1, 0, 1});
  CHECK_THROWS_WITH_AS(own({3}, Initial::of([](std::int64_t i) { return i == 2 ? kNaN : 0; })),
                       doctest::Contains("the initial value of p.weight at element 2 is"), Error);
  CHECK_THROWS_AS(Initial::kaiming_normal(0), ConfigError);
  CHECK_THROWS_AS(Initial::xavier_normal(3, 0), ConfigError);
  CHECK_THROWS_AS(Initial::constant(kNaN), ConfigError);
  CHECK_THROWS_AS(Initial::normal(-1), ConfigError);
  CHECK_THROWS_AS(Initial::of(nullptr), ConfigError);
  ParameterStore store;
  CHECK_THROWS_WITH_AS(store.parameter("p", {3, 0}, ParameterKind::kWeight),
                       doctest::Contains("parameter p: expected positive extents, got [3, 0]"),
                       Error);
  CHECK_THROWS_AS(store.parameter("p", {3}, ParameterKind::kWeight, -1), Error);
}

TEST_CASE("a summary lists every call with its output and the parameters that it brings") {
  TestNetwork net(
      [](NetworkBuilder& builder, Value* x) {
        x = builder.conv2d(x, "a", {.out_channels = 3, .bias = true});
        x = builder.batch_norm(builder.conv2d(x, "a", {.out_channels = 3, .bias = true}), "bn");
        return builder.linear(x, "head", 2);
      },
      {5, 4, 6, 3});
  const std::vector<LayerSummary> rows = net.network->summary();
  REQUIRE(rows.size() == 4);
  CHECK(rows[0].name == "a");
  CHECK(rows[0].kind == "lockstep::Conv2dLayer");
  CHECK(rows[0].output == Shape{5, 4, 6, 3});
  CHECK(rows[0].parameters == 3 * 3 + 3);
  CHECK(rows[0].output_bytes == 5 * 4 * 6 * 3 * sizeof(float));
  CHECK(rows[1].parameters == 0);  // the first call has them
  CHECK(rows[2].parameters == 6);
  CHECK(rows[2].saved_bytes > 0);
  CHECK(rows[3].output == Shape{5, 4, 6, 2});
  CHECK(rows[3].parameters == 3 * 2 + 2);
}

TEST_CASE("initial weights take the memory of one parameter at a time") {
  const auto backend = make_backend(Device{}, 1);
  ParameterStore store;
  constexpr std::int64_t kElements = 4096;
  for (const char* name : {"a", "b", "c"}) {
    store.parameter(name, Shape{1, kElements}, ParameterKind::kWeight);
  }
  store.allocate(*backend);
  largest_allocation();  // those until now do not count
  initialize_parameters(store, *backend, 3);
  CHECK(largest_allocation() == kElements * sizeof(float));
}

}  // namespace lockstep::test
