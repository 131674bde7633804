#include <iostream>
#include <set>

#include "lockstep/io/weights.h"
#include "lockstep/nn/models.h"
#include "nn/harness.h"

namespace lockstep::test {
namespace {

struct Unet : DeclaredModel {
  Unet(const UnetOptions& options, const Shape& input, const PlanOptions& plan = {})
      : DeclaredModel(unet(options), input, plan) {}
};

/// Elements of the parameters, counted from the description in unet.h alone.
std::int64_t expected_parameters(std::int64_t width, std::int64_t depth, std::int64_t classes) {
  const auto block = [](std::int64_t in, std::int64_t out) { return 9 * in * out + 2 * out; };
  std::int64_t sum = width * classes + classes;
  for (std::int64_t k = 0; k < depth; ++k) {
    const std::int64_t out = width << k;
    sum += block(k == 0 ? 3 : out / 2, out) + block(out, out);
    if (k + 1 < depth) sum += block(3 * out, out) + block(out, out);
  }
  return sum;
}

}  // namespace

TEST_CASE("U-Net: names, shapes and number of parameters are PyTorch's") {
  Unet unet({16, 4, 11}, {1, 16, 24, 3});
  const TensorMap tensors = state_dict(unet.store, *unet.backend);
  const auto shape = [&](const std::string& name) {
    CAPTURE(name);
    REQUIRE(tensors.contains(name));
    return tensors.at(name).shape;
  };
  using Extents = std::vector<std::int64_t>;
  CHECK(shape("encoder.0.0.conv.weight") == Extents{16, 3, 3, 3});
  CHECK(shape("encoder.3.0.conv.weight") == Extents{128, 64, 3, 3});
  CHECK(shape("encoder.3.1.conv.weight") == Extents{128, 128, 3, 3});
  CHECK(shape("decoder.0.0.conv.weight") == Extents{64, 64 + 128, 3, 3});
  CHECK(shape("decoder.2.0.conv.weight") == Extents{16, 16 + 32, 3, 3});
  CHECK(shape("decoder.2.1.bn.weight") == Extents{16});
  CHECK(shape("encoder.1.1.bn.running_var") == Extents{32});
  CHECK(shape("encoder.1.1.bn.num_batches_tracked") == Extents{});
  CHECK(shape("head.weight") == Extents{11, 16, 1, 1});
  CHECK(shape("head.bias") == Extents{11});
  CHECK(tensors.size() == 14 * 6 + 2);  // 14 blocks of one weight and five of BatchNorm
  CHECK_FALSE(tensors.contains("encoder.0.0.conv.bias"));

  CHECK(unet.parameters() == expected_parameters(16, 4, 11));
  CHECK(unet.network->output().shape == Shape{1, 16, 24, 11});
  CHECK(batch_norms_of(*unet.network).size() == 14);
  CHECK(batch_norms_of(*unet.network)[0]->name() == "encoder.0.0.bn");
  CHECK(batch_norms_of(*unet.network)[13]->config().call_index == 13);
}

TEST_CASE("U-Net: no convolution reads or writes a strided tensor, no concatenation copies") {
  Unet unet({8, 3, 5}, {2, 8, 12, 3});
  int concatenations = 0;
  for (const auto& layer : unet.network->layers()) {
    CAPTURE(layer->name());
    if (layer->traits().prefers_dense) {
      CHECK(layer->inputs()[0]->data.dense());
      CHECK(layer->output()->data.dense());
      CHECK(layer->output()->grad.dense());
    }
    if (!layer->traits().concatenates) continue;
    ++concatenations;
    std::int64_t channel = 0;
    for (const Value* part : layer->inputs()) {
      const std::int64_t channels = part->shape.channels();
      CHECK(part->data.data == layer->output()->data.channel_range(channel, channels).data);
      CHECK(part->grad.data == layer->output()->grad.channel_range(channel, channels).data);
      channel += channels;
    }
  }
  CHECK(concatenations == 2);
}

TEST_CASE("U-Net: sizes that do not fit are errors of the configuration") {
  CHECK(unet_size_divisor({16, 4, 2}) == 8);
  CHECK_THROWS_WITH_AS(Unet({8, 4, 2}, {1, 16, 20, 3}),
                       doctest::Contains("must be multiples of 8, got [1, 16, 20, 3]"),
                       ConfigError);
  CHECK_THROWS_AS(Unet({0, 4, 2}, {1, 16, 16, 3}), ConfigError);
  CHECK_THROWS_AS(Unet({8, 0, 2}, {1, 16, 16, 3}), ConfigError);
  CHECK_THROWS_AS(Unet({8, 2, 0}, {1, 16, 16, 3}), ConfigError);
  CHECK_NOTHROW(Unet({4, 1, 2}, {1, 3, 5, 3}));
}

TEST_CASE("U-Net: initial weights depend on seed and name only") {
  Unet small({8, 2, 3}, {1, 4, 4, 3});
  Unet deep({8, 3, 5}, {2, 8, 8, 3});
  initialize_parameters(small.store, *small.backend, 7);
  initialize_parameters(deep.store, *deep.backend, 7);
  const auto values = [](Unet& unet, const std::string& name) {
    const Parameter* parameter = unet.store.find(name);
    REQUIRE(parameter != nullptr);
    return download(*unet.backend, parameter->value, parameter->elements);
  };
  CHECK(values(small, "encoder.1.0.conv.weight") == values(deep, "encoder.1.0.conv.weight"));
  CHECK(values(small, "encoder.0.1.conv.weight") != values(small, "decoder.0.1.conv.weight"));
  const Floats first = values(small, "encoder.0.1.conv.weight");
  const Floats second = values(small, "encoder.1.1.conv.weight");
  CHECK(first[0] / first[1] != doctest::Approx(second[0] / second[1]));
  CHECK(values(small, "encoder.0.0.bn.weight") == Floats(8, 1.0F));
  CHECK(values(small, "encoder.0.0.bn.bias") == Floats(8, 0.0F));
  CHECK(values(small, "head.bias") == Floats(3, 0.0F));
  const Floats before = values(small, "encoder.1.0.conv.weight");
  initialize_parameters(small.store, *small.backend, 8);
  CHECK(values(small, "encoder.1.0.conv.weight") != before);

  // Kaiming's standard deviation, sqrt(2 / fan_in).
  const Floats weights = values(deep, "encoder.2.1.conv.weight");
  double squares = 0;
  for (const float weight : weights) squares += static_cast<double>(weight) * weight;
  const double std = std::sqrt(squares / static_cast<double>(weights.size()));
  CHECK(std == doctest::Approx(std::sqrt(2.0 / (9 * 32))).epsilon(0.03));
}

TEST_CASE("U-Net: sharing memory changes no bit and keeps the plan near its lower bound") {
  const UnetOptions options{8, 3, 5};
  const Shape input{2, 16, 24, 3};
  const Floats images = random_floats(input.elements(), 1);
  const auto step = [&](Unet& unet, bool training) {
    initialize_parameters(unet.store, *unet.backend, 3);
    const StepContext context{.training = training};
    upload(*unet.backend, unet.network->input(), images);
    unet.network->zero_grad();
    unet.network->forward(context);
    Floats result = download(*unet.backend, unet.network->output());
    if (!training) return result;
    upload(*unet.backend, unet.network->output_grad(), random_floats(input.rows() * 5, 2));
    unet.network->backward(context);
    const Floats grads = download(*unet.backend, unet.store.grads(), unet.store.elements());
    result.insert(result.end(), grads.begin(), grads.end());
    return result;
  };
  for (const bool training : {true, false}) {
    Unet shared(options, input, {.training = training});
    Unet separate(options, input, {.training = training, .share_memory = false});
    CHECK(step(shared, training) == step(separate, training));
  }
}

TEST_CASE("U-Net: memory of the plan") {
  // Width 16, depth 4: floats per pixel of the image. 309 activations are read again by the
  // backward pass.
  const Shape input{2, 64, 96, 3};
  const auto floats_per_pixel = [&](bool training) {
    Unet unet({16, 4, 11}, input, {.training = training});
    return static_cast<double>(unet.network->planned_bytes()) / 4 /
           static_cast<double>(input.rows());
  };
  const double training = floats_per_pixel(true);
  const double evaluation = floats_per_pixel(false);
  std::cout << "U-Net 16x4: " << training << " floats per pixel in training, " << evaluation
            << " in evaluation\n";
  CHECK(training < 320);
  CHECK(evaluation < 95);
}

}  // namespace lockstep::test
