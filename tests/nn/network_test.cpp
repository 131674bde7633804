// What a network promises beside correct numbers: prefixes, shared layers, no allocation in a step,
// errors.

#include "lockstep/nn/network.h"

#include <map>

#include "lockstep/nn/model.h"
#include "nn/harness.h"
#include "support/devices.h"
#include "support/errors.h"
#include "support/with_variable.h"

namespace lockstep::test {
namespace {

Value* small_unet(NetworkBuilder& net, Value* x) {
  const Conv2dOptions conv{.out_channels = 4, .kernel = 3, .padding = 1};
  Value* skip = net.batch_norm_relu(net.conv2d(x, "e0", conv), "e0.bn");
  Value* y = net.batch_norm_relu(net.conv2d(net.max_pool2d(skip, {}), "e1", conv), "e1.bn");
  y = net.concat({skip, net.upsample_bilinear(y, x->shape.height(), x->shape.width(), false)});
  y = net.dropout(net.batch_norm_relu(net.conv2d(y, "d0", conv), "d0.bn"), 0.25F);
  return net.conv2d(y, "head", {.out_channels = 3, .bias = true});
}

Floats head(const Floats& values, std::int64_t count) {
  return Floats(values.begin(), values.begin() + count);
}

}  // namespace

TEST_CASE("a smaller batch equals a network planned for it") {
  const Shape planned{5, 6, 4, 3};
  TestNetwork net(small_unet, planned);
  const StepContext context{.update_running_stats = false, .seed = 3, .sample_offset = 2};
  const auto step = [&](std::int64_t batch) {
    const Floats input = random_floats(planned.with_batch(batch).elements(), 8);
    net.network->set_batch(batch);
    CHECK(net.network->input().shape == planned.with_batch(batch));
    const StepResult prefix = net.step(input, 4, context);
    const auto exact = net.build(small_unet, planned.with_batch(batch), {true, true});
    CHECK(prefix == net.step(*exact, input, 4, context));
  };
  for (const std::int64_t batch : {3, 1, 5, 2}) step(batch);
}

TEST_CASE("an empty batch changes nothing") {
  TestNetwork net(small_unet, {2, 4, 4, 3});
  net.network->set_batch(0);
  const Doubles before = net.reference().parameters.at("e0.bn.running_mean");
  const StepResult result = net.step({}, 1);
  CHECK(result.output.empty());
  for (const auto& [name, grad] : result.grads) CHECK(grad == Floats(grad.size(), 0.0F));
  CHECK(net.reference().parameters.at("e0.bn.running_mean") == before);
  CHECK(net.store.batch_norms()[0]->num_batches_tracked == 0);
}

TEST_CASE("an observer hears of every layer's share of both passes, in order") {
  struct Listener : LayerObserver {
    void begin(std::size_t layer, Direction direction) override { hear("begin", layer, direction); }
    void end(std::size_t layer, Direction direction) override { hear("end", layer, direction); }
    void hear(const char* what, std::size_t layer, Direction direction) {
      heard.push_back(concat(what, " ", to_string(direction), " ", layer));
    }
    std::vector<std::string> heard;
  };
  const Shape shape{2, 4, 4, 3};
  TestNetwork net(small_unet, shape, {.training = true, .input_grad = false});
  const Floats input = random_floats(shape.elements(), 8);
  const StepContext context{.update_running_stats = false, .seed = 3};
  const StepResult alone = net.step(input, 4, context);
  Listener listener;
  net.network->observe(&listener);
  CHECK(net.step(input, 4, context) == alone);
  std::vector<std::string> expected;
  const std::size_t layers = net.network->layers().size();
  for (const char* direction : {"forward", "backward"}) {
    for (std::size_t k = 0; k < layers; ++k) {
      const std::size_t layer = direction == std::string("forward") ? k : layers - 1 - k;
      for (const char* what : {"begin", "end"}) {
        expected.push_back(concat(what, " ", direction, " ", layer));
      }
    }
  }
  CHECK(listener.heard == expected);
  net.network->observe(nullptr);
  listener.heard.clear();
  net.step(input, 4, context);
  CHECK(listener.heard.empty());
}

TEST_CASE("a layer's work counts what must move") {
  // The residual block reads its input twice: the second gradient is added to the first.
  const Describe block = [](NetworkBuilder& net, Value* x) {
    Value* y = net.conv2d(x, "a", {.out_channels = 3, .kernel = 3, .padding = 1});
    Value* z = net.batch_norm_add_relu(net.conv2d(y, "b", {.out_channels = 3}), y, "n");
    Value* pooled = net.max_pool2d(z, {});
    Value* up = net.upsample_bilinear(pooled, 4, 4, false);
    return net.conv2d(net.concat({z, up}), "head", {.out_channels = 2, .bias = true});
  };
  TestNetwork net(block, {2, 4, 4, 3}, {.training = true, .input_grad = false});
  const double tensor = 2 * 4 * 4 * 3 * 4;
  const double quarter = tensor / 4;
  std::map<std::string, std::pair<LayerWork, LayerWork>> work;
  for (std::size_t i = 0; i < net.network->layers().size(); ++i) {
    std::string name = net.network->layers()[i]->name();
    if (const auto number = name.find('_'); number != std::string::npos) name.resize(number);
    work[name] = {net.network->work(i, Direction::kForward),
                  net.network->work(i, Direction::kBackward)};
  }
  CHECK(work.at("n").first.bytes == 4 * tensor);  // x, x, residual, y
  // Twice x, dy and the mask's y; dx and the residual's gradient.
  CHECK(work.at("n").second.bytes == 8 * tensor);
  CHECK(work.at("max").first.bytes == tensor + quarter + quarter / 4);  // and a byte per output
  CHECK(work.at("max").second.bytes == quarter + quarter / 4 + 2 * tensor);  // adds to z's gradient
  CHECK(work.at("upsample").first.bytes == quarter + tensor);
  CHECK(work.at("upsample").second.bytes == quarter + tensor);
  CHECK(work.at("concat").first.bytes == 0);  // both parts lie inside
  CHECK(work.at("concat").second.bytes == 0);
  CHECK(work.at("b").first.flops == 2.0 * 32 * 3 * 3);
  CHECK(work.at("b").second.flops == 4.0 * 32 * 3 * 3);
  CHECK(work.at("b").first.bytes == 2 * tensor + 9 * 4);
  // x, dy and dw twice; dy, w and dx, which is added to.
  CHECK(work.at("b").second.bytes == 2 * tensor + 2 * 9 * 4 + tensor + 9 * 4 + 2 * tensor);
  CHECK(work.at("a").second.flops == 2.0 * 32 * 3 * 27);  // nobody needs the input's gradient
  CHECK(net.network->work(0, Direction::kForward).flops == 2.0 * 32 * 3 * 27);
}

TEST_CASE("inference reads what BatchNorm normalises once, and not at all behind a convolution") {
  const auto work = [](const Describe& describe, const std::string& name) {
    TestNetwork net(describe, {2, 4, 4, 3}, {.training = false});
    for (std::size_t i = 0; i < net.network->layers().size(); ++i) {
      if (net.network->layers()[i]->name() != name) continue;
      CHECK(net.network->work(i, Direction::kBackward).bytes == 0);
      return net.network->work(i, Direction::kForward).bytes;
    }
    return -1.0;
  };
  const WithVariable block_by_block("LOCKSTEP_CONVOLUTION", "winograd8");
  const Conv2dOptions conv{.out_channels = 3, .kernel = 3, .padding = 1};
  const double tensor = 2 * 4 * 4 * 3 * 4;
  CHECK(work([](NetworkBuilder& net, Value* x) { return net.batch_norm_relu(x, "n"); }, "n") ==
        2 * tensor);
  CHECK(work([&](NetworkBuilder& net,
                 Value* x) { return net.batch_norm_relu(net.conv2d(x, "c", conv), "n"); },
             "n") == 0);
  // Somebody else reads the convolution's output.
  CHECK(work(
            [&](NetworkBuilder& net, Value* x) {
              Value* y = net.conv2d(x, "c", conv);
              return net.add(net.batch_norm_relu(y, "n"), y);
            },
            "n") == 2 * tensor);
}

TEST_CASE("a step allocates nothing") {
  // oneDNN makes a list of arguments at each call, so that only layers of our own are counted on
  // the host.
  allocations_of_steps(small_unet, 4);
  CHECK(allocations_of_steps(
            [](NetworkBuilder& net, Value* x) {
              Value* skip = net.batch_norm_relu(x, "a");
              Value* y = net.batch_norm_add_relu(net.max_pool2d(skip, {}),
                                                 net.relu(net.avg_pool2d(x, {})), "b");
              y = net.concat({skip, net.dropout(net.upsample_bilinear(y, 8, 8, true), 0.5F), x});
              return net.batch_norm(net.add(y, y), "c");
            },
            4) == 0);
  CHECK(allocations_of_steps(
            [](NetworkBuilder& net, Value* x) {
              Value* y = net.prelu(net.gelu(net.prelu(x, "a")), "b", false);
              Value* gate = net.sigmoid(net.adaptive_avg_pool2d(y, 1, 1));
              y = net.sub(net.mul(y, gate), net.softmax(net.slice_channels(y, 1, 1)));
              return net.mul(y, net.tanh(y));
            },
            4) == 0);
  allocations_of_steps(
      [](NetworkBuilder& net, Value* x) {
        return net.conv_transpose2d(x, "up", {.out_channels = 4, .bias = true});
      },
      4);
}

TEST_CASE("gradients of parameters add up until they are zeroed") {
  TestNetwork net(small_unet, {2, 4, 4, 3}, {}, {}, 3);
  const Floats input = random_floats(net.network->input().shape.elements(), 1);
  const StepContext context{.update_running_stats = false};
  const StepResult once = net.step(input, 6, context);
  net.network->forward(context);
  upload(*net.backend, net.network->output_grad(),
         random_floats(net.network->output().shape.elements(), 6));
  net.network->backward(context);
  for (const auto& parameter : net.store.parameters()) {
    Floats twice = once.grads.at(parameter->name);
    for (float& value : twice) value *= 2;
    CHECK(download(*net.backend, parameter->grad, parameter->elements) == twice);
  }
}

TEST_CASE("concatenation in place equals concatenation by copy, bit for bit") {
  const auto describe = [](bool copies) {
    return [copies](NetworkBuilder& net, Value* x) {
      Value* a = net.relu(net.conv2d(x, "a", {.out_channels = 3}));
      Value* b = net.batch_norm_relu(net.conv2d(x, "b", {.out_channels = 2}), "bn");
      Value* both = net.concat({a, b});
      // A convolution asks for dense inputs, even if nobody reads it: nothing then lies in place.
      if (copies) net.conv2d(a, "unused_a", {.out_channels = 1});
      if (copies) net.conv2d(b, "unused_b", {.out_channels = 1});
      return net.conv2d(both, "head", {.out_channels = 3});
    };
  };
  TestNetwork copied(describe(true), {2, 9, 10, 2});
  TestNetwork in_place(describe(false), {2, 9, 10, 2});
  for (const auto& parameter : in_place.store.parameters()) {
    upload(
        *in_place.backend, parameter->value,
        download(*copied.backend, copied.store.find(parameter->name)->value, parameter->elements));
  }
  const Floats input = random_floats(360, 2);
  const StepResult a = copied.step(input, 3);
  const StepResult b = in_place.step(input, 3);
  CHECK(a.output == b.output);
  CHECK(a.input_grad == b.input_grad);
  for (const auto& [name, grad] : b.grads) CHECK(grad == a.grads.at(name));
  CHECK(in_place.network->planned_bytes() < copied.network->planned_bytes());
}

TEST_CASE("dropout depends on the seed, the layer and the sample's place in the global batch") {
  const Describe describe = [](NetworkBuilder& net, Value* x) {
    return net.concat({net.dropout(x, 0.5F), net.dropout(x, 0.5F)});
  };
  TestNetwork net(describe, {4, 3, 3, 2});
  const Floats ones(72, 1.0F);
  const auto run = [&](std::uint64_t seed, std::int64_t offset, bool training = true) {
    return net.step(ones, 1, {.training = training, .seed = seed, .sample_offset = offset}).output;
  };
  const Floats whole = run(1, 0);
  CHECK(whole == run(1, 0));
  CHECK(whole != run(2, 0));
  CHECK(head(run(1, 2), 72) == Floats(whole.begin() + 72, whole.end()));
  CHECK(run(1, 0, false) == Floats(144, 1.0F));
  bool layers_differ = false;
  for (std::size_t i = 0; i < whole.size(); i += 4) layers_differ |= whole[i] != whole[i + 2];
  CHECK(layers_differ);
  // The gradient passes exactly where the values passed.
  const Floats grad_y = random_floats(144, 1);
  const Floats grad_x = net.step(ones, 1, {.seed = 1}).input_grad;
  for (std::size_t i = 0; i < grad_x.size(); ++i) {
    const std::size_t at = i / 2 * 4 + i % 2;
    CHECK(grad_x[i] == whole[at] * grad_y[at] + whole[at + 2] * grad_y[at + 2]);
  }
}

TEST_CASE("two networks share the parameters of one store") {
  TestNetwork net(small_unet, {2, 4, 4, 3});
  const auto larger = net.build(small_unet, {1, 8, 6, 3}, {.training = false});
  CHECK(larger->output().shape == Shape{1, 8, 6, 3});
  CHECK_FALSE(larger->output_grad());
  CHECK_THROWS_WITH_AS(larger->backward({}), doctest::Contains("planned without gradients"), Error);
  CHECK_THROWS_WITH_AS(
      net.build([](NetworkBuilder& other,
                   Value* x) { return other.conv2d(x, "e9", {.out_channels = 1}); },
                {1, 4, 4, 3}, {}),
      doctest::Contains("no parameter e9.weight"), Error);
}

TEST_CASE("the CPU refuses to plan for a type that it does not compute in") {
  const Describe conv = [](NetworkBuilder& net, Value* x) {
    return net.conv2d(x, "stem", {.out_channels = 2});
  };
  CHECK_THROWS_WITH_AS(TestNetwork(conv, {1, 4, 4, 3}, {.activations = DType::kFloat16}),
                       doctest::Contains("expects activations in fp32 or bf16, got fp16"), Error);
}

TEST_CASE("errors name the layer and both sides") {
  const std::unique_ptr<Backend> backend = make_backend(Device{}, 1);
  ParameterStore store;
  NetworkBuilder net(*backend, store, {});
  Value* x = net.input({2, 4, 4, 3});
  CHECK_THROWS_WITH_AS(net.input({1, 1}), doctest::Contains("one input"), Error);
  CHECK_THROWS_WITH_AS(net.conv2d(x, "stem", {.out_channels = 4, .kernel = 7}),
                       doctest::Contains("stem: "), Error);
  CHECK_THROWS_WITH_AS(net.conv2d(x, "stem", {.out_channels = 4, .groups = 2}),
                       doctest::Contains("stem: "), Error);
  Value* pooled = net.max_pool2d(x, {});
  CHECK_THROWS_WITH_AS(net.add(x, pooled), doctest::Contains("[2, 4, 4, 3] and [2, 2, 2, 3]"),
                       Error);
  CHECK_THROWS_WITH_AS(net.concat({x, pooled}), doctest::Contains("[2, 2, 2, 3]"), Error);
  CHECK_THROWS_WITH_AS(net.batch_norm_add_relu(x, pooled, "bn"), doctest::Contains("bn: "), Error);
  CHECK_THROWS_AS(net.dropout(x, 1.0F), Error);
  CHECK_THROWS_AS(net.upsample_bilinear(x, 0, 4, false), Error);
  CHECK_THROWS_AS(net.build(x, {}), Error);
  Value* y = net.conv2d(x, "stem", {.out_channels = 4});
  CHECK_THROWS_WITH_AS(net.conv2d(x, "stem", {.out_channels = 5}),
                       doctest::Contains("[4, 3, 1, 1]"), Error);
  const auto network = net.build(y, {});
  CHECK_THROWS_WITH_AS(network->set_batch(3), doctest::Contains("planned for 0 to 2"), Error);
  CHECK_THROWS_AS(net.build(y, {}), Error);
}

TEST_CASE("the gradients of several outputs add up, also where one feeds another") {
  ParameterStore store;
  const auto backend = make_backend(Device{}, 1);
  NetworkBuilder net(*backend, store);
  Value* x = net.input({2, 4, 5, 3});
  Value* first = net.relu(net.conv2d(x, "a", {.out_channels = 4, .kernel = 3, .padding = 1}));
  Value* second = net.conv2d(first, "b", {.out_channels = 2, .bias = true});
  const auto network = net.build({{"second", second}, {"first", first}}, {true, true});
  upload(*backend, store.find("a.weight")->value, random_floats(4 * 27, 1, 0.4F));
  upload(*backend, store.find("b.weight")->value, random_floats(8, 2, 0.4F));
  upload(*backend, network->input(), random_floats(120, 3));
  CHECK(network->output_names() == std::vector<std::string>{"second", "first"});
  CHECK(network->output_index("first") == 1);
  CHECK_THROWS_WITH_AS(network->output_index("third"),
                       doctest::Contains("no output 'third'; it has second, first"), Error);

  const Floats of_second = random_floats(80, 4), of_first = random_floats(160, 5);
  const auto input_grad = [&](float scale_second, float scale_first) {
    Floats second_grad = of_second, first_grad = of_first;
    for (float& value : second_grad) value *= scale_second;
    for (float& value : first_grad) value *= scale_first;
    network->zero_grad();
    network->forward({});
    upload(*backend, network->output_grad(0), second_grad);
    upload(*backend, network->output_grad(1), first_grad);
    network->backward({});
    return download(*backend, network->input_grad());
  };
  const Floats both = input_grad(1, 1), only_second = input_grad(1, 0),
               only_first = input_grad(0, 1);
  for (std::size_t i = 0; i < both.size(); ++i) {
    CHECK(both[i] == doctest::Approx(only_second[i] + only_first[i]).epsilon(1e-4));
  }
  CHECK(only_second != only_first);
}

TEST_CASE("an output whose gradient is not given has none of its own") {
  ParameterStore store;
  const auto backend = make_backend(Device{}, 1);
  NetworkBuilder net(*backend, store);
  Value* x = net.input({2, 4, 5, 3});
  Value* seen = net.conv2d(x, "a", {.out_channels = 4});
  Value* idle = net.conv2d(x, "idle", {.out_channels = 4});
  const Outputs outputs{{"out", net.conv2d(seen, "b", {.out_channels = 2})}, {"idle", idle}};
  const auto network = net.build(outputs, {.training = true, .grad_outputs = {"out"}});
  CHECK(network->output_grad(0));
  CHECK_FALSE(network->output_grad(1));
  CHECK(network->output(1));
}

TEST_CASE("outputs that make no network") {
  ParameterStore store;
  const auto backend = make_backend(Device{}, 1);
  NetworkBuilder net(*backend, store);
  Value* x = net.input({2, 4, 5, 3});
  Value* y = net.conv2d(x, "a", {.out_channels = 4});
  CHECK_THROWS_AS(net.build(Outputs{}, {}), Error);
  CHECK_THROWS_AS(net.build({{"in", x}}, {}), Error);
  CHECK_THROWS_AS(net.build({{"a", y}, {"b", y}}, {}), Error);
  CHECK_THROWS_AS(net.build({{"a", y}, {"a", net.relu(y)}}, {}), Error);
}

TEST_CASE("layers that lead to no wanted output are left out") {
  const Model model = [](NetworkBuilder& net, Value* x, const NormLayer& norm) -> Outputs {
    x = norm(net, net.conv2d(x, "stem", {.out_channels = 4, .kernel = 3, .padding = 1}), "bn");
    Value* aux = norm(net, net.conv2d(x, "aux", {.out_channels = 6}), "aux_bn", {.relu = true});
    aux = net.add(aux, aux);
    return {{"aux", aux}, {"out", net.conv2d(net.relu(x), "head", {.out_channels = 2})}};
  };
  const Shape input{2, 6, 7, 3};
  const Floats images = random_floats(input.elements(), 3);
  const auto backend = make_backend(Device{}, 1);
  ParameterStore store;
  const auto all = build_network(model, {}, input, {.training = false}, *backend, store);
  initialize_parameters(store, *backend, 5);
  const auto one =
      build_network(model, {}, input, {.training = false, .outputs = {"out"}}, *backend, store);
  for (Network* network : {all.get(), one.get()}) {
    upload(*backend, network->input(), images);
    network->forward({.training = false});
  }
  CHECK(all->layers().size() == 7);
  CHECK(one->layers().size() == 4);
  CHECK(batch_norms_of(*all).size() == 2);
  CHECK(batch_norms_of(*one).size() == 1);
  CHECK(one->planned_bytes() < all->planned_bytes());
  CHECK(download(*backend, one->output(one->output_index("out"))) ==
        download(*backend, all->output(all->output_index("out"))));
  CHECK_FALSE(one->output(one->output_index("aux")));
}

}  // namespace lockstep::test
