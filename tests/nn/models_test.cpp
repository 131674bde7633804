// The built-in networks on a ResNet: sizes as published, what may be asked of them.

#include "lockstep/nn/models.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "lockstep/io/weights.h"
#include "nn/harness.h"

namespace lockstep::test {
namespace {

/// A network of the table, for evaluation.
struct BuiltIn : DeclaredModel {
  explicit BuiltIn(const ModelOptions& options)
      : DeclaredModel(find_architecture(builtin_models(), options).model, {2, 40, 33, 3},
                      {.training = false}) {}
};

}  // namespace

TEST_CASE("models: as many parameters as torchvision says") {
  const std::pair<const char*, std::int64_t> classifiers[] = {{"resnet18", 11689512},
                                                              {"resnet34", 21797672},
                                                              {"resnet50", 25557032},
                                                              {"resnet101", 44549160},
                                                              {"resnext50_32x4d", 25028904}};
  for (const auto& [arch, count] : classifiers) {
    CAPTURE(arch);
    const BuiltIn net({.arch = arch, .num_classes = 1000});
    CHECK(net.parameters() == count);
    CHECK(net.network->output().shape == Shape{2, 1000});
  }
  const std::pair<const char*, std::int64_t> segmenters[] = {{"fcn_resnet50", 35322218},
                                                             {"fcn_resnet101", 54314346},
                                                             {"deeplabv3_resnet50", 42004074},
                                                             {"deeplabv3_resnet101", 60996202}};
  for (const auto& [arch, count] : segmenters) {
    CAPTURE(arch);
    const BuiltIn net({.arch = arch, .num_classes = 21, .aux_head = true});
    CHECK(net.parameters() == count);
    CHECK(net.network->output_names() == std::vector<std::string>{"out", "aux"});
    CHECK(net.network->output(0).shape == Shape{2, 40, 33, 21});
    CHECK(net.network->output(1).shape == Shape{2, 40, 33, 21});
  }
}

TEST_CASE("models: features of the asked output stride") {
  for (const auto& [stride, height, width] : {std::tuple{8, 5, 5}, {16, 3, 3}, {32, 2, 2}}) {
    CAPTURE(stride);
    const auto backend = make_backend(Device{}, 1);
    ParameterStore store;
    NetworkBuilder net(*backend, store);
    Value* x = net.input({1, 40, 33, 3});
    const auto features = resnet_features(
        net, x, {}, with_output_stride(resnet_options("resnet50"), stride), "backbone.");
    CHECK(features[0]->shape == Shape{1, 10, 9, 256});
    CHECK(features[3]->shape == Shape{1, height, width, 2048});
  }
}

TEST_CASE("models: a frozen backbone leaves BatchNorm of the head alone") {
  const BuiltIn net({.arch = "fcn_resnet50", .num_classes = 4, .frozen_bn = true});
  int frozen = 0, learning = 0;
  for (const BatchNormLayer* layer : batch_norms_of(*net.network)) {
    const bool in_backbone = layer->name().starts_with("backbone.");
    CHECK(layer->config().norm.is_frozen() == in_backbone);
    (in_backbone ? frozen : learning) += 1;
  }
  CHECK(frozen == 53);
  CHECK(learning == 1);
}

TEST_CASE("models: the heads' parameters are those that the table names") {
  for (const bool aux : {false, true}) {
    for (const char* arch : {"fcn_resnet50", "deeplabv3_resnet50", "pspnet_resnet50"}) {
      CAPTURE(arch);
      const ModelOptions options{.arch = arch, .num_classes = 4, .aux_head = aux};
      const BuiltIn net(options);
      const std::vector<std::string> heads = find_architecture(builtin_models(), options).heads;
      CHECK(heads.size() >= (aux ? 2 : 1));
      std::set<std::string> used;
      for (const auto& parameter : net.store.parameters()) {
        const std::string& name = parameter->name;
        CAPTURE(name);
        const auto head = std::find_if(heads.begin(), heads.end(), [&](const std::string& prefix) {
          return name.starts_with(prefix + ".");
        });
        const bool in_backbone = name.starts_with("backbone.") || name.starts_with("layer");
        CHECK((head == heads.end()) == in_backbone);
        if (head != heads.end()) used.insert(*head);
      }
      CHECK(used.size() == heads.size());
    }
  }
}

TEST_CASE("models: one logit against 0 trains the network of one channel by its sigmoid") {
  for (const char* arch : {"unet", "resnet18"}) {
    CAPTURE(arch);
    const auto describe = [&](std::int64_t classes) {
      const Model model =
          find_architecture(
              builtin_models(),
              {.arch = arch, .num_classes = classes, .one_logit = classes == 2, .width = 4})
              .model;
      return Describe([model](NetworkBuilder& net, Value* x) {
        return model(net, x, NormLayer()).front().value;
      });
    };
    TestNetwork two(describe(2), {2, 32, 32, 3}), one(describe(1), {2, 32, 32, 3});
    const Floats x = random_floats(2 * 32 * 32 * 3, 3);
    const Floats z = one.step(x, 1).output, logits = two.step(x, 1).output;
    REQUIRE(logits.size() == 2 * z.size());
    Floats grad_z, grad_logits;  // of the sum of log(1 + exp(z)), by one logit and by two
    for (std::size_t i = 0; i < z.size(); ++i) {
      CHECK(logits[2 * i] == 0);
      CHECK(logits[2 * i + 1] == z[i]);
      const float p = 1 / (1 + std::exp(-z[i]));
      grad_z.push_back(p);
      grad_logits.insert(grad_logits.end(), {-p, p});
    }
    const auto grads = [&x](TestNetwork& net, const Floats& grad) {
      net.network->zero_grad();
      upload(*net.backend, net.network->input(), x);
      net.network->forward({});
      upload(*net.backend, net.network->output_grad(), grad);
      net.network->backward({});
      std::map<std::string, Floats> of_parameters;
      for (const auto& parameter : net.store.parameters())
        of_parameters[parameter->name] =
            download(*net.backend, parameter->grad, parameter->elements);
      return of_parameters;
    };
    CHECK(grads(two, grad_logits) == grads(one, grad_z));
  }
}

TEST_CASE("models: what cannot be is an error that says so") {
  const auto make = [](const ModelOptions& options) {
    return find_architecture(builtin_models(), options);
  };
  CHECK_THROWS_WITH_AS(make({.arch = "fcn_resnet50", .num_classes = 4, .output_stride = 12}),
                       "model.output_stride: expected 8, 16 or 32, got 12", ConfigError);
  CHECK_THROWS_WITH_AS(resnet_options("resnet51"), doctest::Contains("resnet50"), ConfigError);
  CHECK_THROWS_WITH_AS(with_output_stride(resnet_options("resnet18"), 8),
                       doctest::Contains("bottleneck"), ConfigError);
  CHECK_THROWS_WITH_AS(make({.arch = "unet", .num_classes = 3, .one_logit = true}),
                       doctest::Contains("two classes apart, and there are 3"), ConfigError);
  for (const char* arch : {"unet", "resnet18"}) {
    CHECK_THROWS_WITH_AS(make({.arch = arch, .num_classes = 4, .aux_head = true}),
                         doctest::Contains("no auxiliary head"), ConfigError);
  }
}

}  // namespace lockstep::test
