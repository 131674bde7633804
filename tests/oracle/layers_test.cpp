// Every layer without state against PyTorch: outputs and all gradients.

#include <doctest/doctest.h>

#include "backend/formulas.h"
#include "lockstep/nn/network.h"
#include "oracle/golden.h"

namespace lockstep::oracle {
namespace {

PoolGeometry pool_geometry(const Json& about) {
  return {.kernel_h = about["kernel"][0],
          .kernel_w = about["kernel"][1],
          .stride_h = about["stride"][0],
          .stride_w = about["stride"][1],
          .padding_h = about["padding"][0],
          .padding_w = about["padding"][1]};
}

ConvGeometry conv_geometry(const Json& about, const std::vector<std::int64_t>& weight) {
  const std::int64_t groups = about["groups"];
  return {.in_channels = weight[1] * groups,
          .out_channels = weight[0],
          .kernel_h = about["kernel"][0],
          .kernel_w = about["kernel"][1],
          .stride_h = about["stride"][0],
          .stride_w = about["stride"][1],
          .padding_h = about["padding"][0],
          .padding_w = about["padding"][1],
          .dilation_h = about["dilation"][0],
          .dilation_w = about["dilation"][1],
          .groups = groups};
}

NormLayer image_norm(const Json& about) {
  BatchNormOptions options;
  options.eps = about["eps"];
  if (about["mode"] == "group") return GroupNorm(about["groups"], options);
  if (about["mode"] == "layer") return LayerNorm(options);
  return InstanceNorm(options);
}

Activation activation_of(const Json& about) {
  for (const ActivationKind kind :
       {ActivationKind::kRelu, ActivationKind::kRelu6, ActivationKind::kLeakyRelu,
        ActivationKind::kSigmoid, ActivationKind::kHardsigmoid, ActivationKind::kTanh,
        ActivationKind::kSilu, ActivationKind::kHardswish, ActivationKind::kGelu,
        ActivationKind::kGeluTanh}) {
    if (about["op"] == to_string(kind)) return {kind, about.value("slope", 0.01F)};
  }
  throw Error(concat("unknown operation ", about["op"].get<std::string>()));
}

Value* add_transposed(NetworkBuilder& net, Value* x, const Json& about) {
  return net.conv_transpose2d(x, "conv",
                              {.out_channels = about["out"],
                               .kernel = about["kernel"],
                               .stride = about["stride"],
                               .padding = about["padding"],
                               .output_padding = about["output_padding"],
                               .dilation = about["dilation"],
                               .groups = about["groups"],
                               .bias = true});
}

Value* add_layer(NetworkBuilder& net, Value* x, const Golden& golden, const std::string& name) {
  const Json about = golden.metadata(name);
  const std::string op = about["op"];
  if (op == "conv") {
    const auto& weight = golden.tensors().at(name + ".weight").shape;
    return net.conv2d(x, "conv", conv_geometry(about, weight), about["bias"].get<bool>());
  }
  if (op == "bilinear") {
    return net.upsample_bilinear(x, about["size"][0], about["size"][1],
                                 about["align_corners"].get<bool>());
  }
  if (op == "max_pool") return net.max_pool2d(x, pool_geometry(about));
  if (op == "image_norm") return image_norm(about)(net, x, "norm");
  if (op == "avg_pool") return net.avg_pool2d(x, pool_geometry(about));
  if (op == "adaptive_pool") {
    return net.adaptive_avg_pool2d(x, about["size"][0], about["size"][1]);
  }
  if (op == "conv_transpose") return add_transposed(net, x, about);
  if (op == "prelu") return net.prelu(x, "conv", about["per_channel"].get<bool>());
  if (op == "softmax") return net.softmax(x);
  if (op == "gate") return net.mul(x, net.sigmoid(net.adaptive_avg_pool2d(x, 1, 1)));
  if (op == "slices") {
    return net.sub(net.slice_channels(x, 0, 3), net.slice_channels(x, 2, 3));
  }
  return net.activation(x, activation_of(about));
}

void set_from_golden(const Golden& golden, const std::string& name, Backend& backend,
                     const Parameter& parameter) {
  const std::vector<float> values = golden.floats(name);
  upload(backend, Tensor(parameter.value, Shape{1, parameter.elements}), values.data());
}

void check_layer(const Golden& golden, const std::string& name) {
  const std::unique_ptr<Backend> backend = make_backend(Device{}, 2);
  ParameterStore store;
  NetworkBuilder net(*backend, store, {});
  Value* x = net.input(golden.shape(name + ".x"));
  Value* y = add_layer(net, x, golden, name);
  const std::unique_ptr<Network> network = net.build(y, {.training = true, .input_grad = true});
  network->set_batch(network->planned_batch());
  for (const auto& parameter : store.parameters()) {
    set_from_golden(golden, name + parameter->name.substr(4), *backend, *parameter);
  }
  upload(*backend, network->input(), golden.floats(name + ".x").data());
  network->zero_grad();
  network->forward({});
  check_result(golden, name + ".y", download(*backend, network->output()));
  upload(*backend, network->output_grad(), golden.floats(name + ".grad_y").data());
  network->backward({});
  check_result(golden, name + ".grad_x", download(*backend, network->input_grad()));
  for (const auto& parameter : store.parameters()) {
    const std::string kind = parameter->name.substr(5);
    check_result(golden, name + ".grad_" + kind,
                 download(*backend, parameter->grad, parameter->elements));
  }
}

}  // namespace

TEST_CASE("layers against PyTorch") {
  const auto golden = load_golden("layers");
  if (!golden) return;
  for (const std::string& name : golden->cases()) check_layer(*golden, name);
}

TEST_CASE("cross entropy against PyTorch") {
  const auto golden = load_golden("losses");
  if (!golden) return;
  const std::unique_ptr<Backend> backend = make_backend(Device{}, 2);
  for (const std::string& name : golden->cases()) {
    const Shape shape = golden->shape(name + ".logits");
    const std::vector<std::uint8_t> bytes = golden->bytes(name + ".labels");
    const std::vector<std::uint16_t> labels(bytes.begin(), bytes.end());
    const std::vector<float> weight = golden->floats(name + ".class_weight");
    double normalizer = 0;
    for (const std::uint16_t label : labels) normalizer += label == 255 ? 0.0 : weight[label];

    const Storage memory = backend->allocate(shape.elements() * sizeof(float));
    const Storage gradient = backend->allocate(shape.elements() * sizeof(float));
    const Storage label_memory = backend->allocate(labels.size() * sizeof labels[0]);
    const Storage weight_memory = backend->allocate(weight.size() * sizeof(float));
    const Storage loss_memory = backend->allocate(sizeof(double));
    const Tensor logits(memory.data(), shape);
    const Tensor label_tensor(label_memory.data(), shape.with_channels(1), DType::kUInt16);
    upload(*backend, logits, golden->floats(name + ".logits").data());
    backend->upload(label_tensor, labels.data());
    upload(*backend, Tensor(weight_memory.data(), Shape{1, shape.channels()}), weight.data());
    backend->losses().cross_entropy(
        {.logits = logits,
         .labels = label_tensor,
         .class_weight = static_cast<const float*>(weight_memory.data()),
         .normalizer = normalizer,
         .grad_logits = Tensor(gradient.data(), shape),
         .loss = static_cast<double*>(loss_memory.data())});
    double loss = 0;
    backend->download(&loss, Tensor(loss_memory.data(), Shape{1, sizeof(double)}, DType::kUInt8));
    backend->synchronize();
    check_result(*golden, name + ".loss", {static_cast<float>(loss)});
    check_result(*golden, name + ".grad_logits",
                 download(*backend, Tensor(gradient.data(), shape)));
  }
}

TEST_CASE("mean squared error against PyTorch") {
  const auto golden = load_golden("squared_errors");
  if (!golden) return;
  const std::unique_ptr<Backend> backend = make_backend(Device{}, 2);
  for (const std::string& name : golden->cases()) {
    const Shape shape = golden->shape(name + ".output");
    const auto bytes = static_cast<std::size_t>(shape.elements()) * sizeof(float);
    const Storage memory[] = {backend->allocate(bytes), backend->allocate(bytes),
                              backend->allocate(bytes), backend->allocate(sizeof(double))};
    const Tensor output(memory[0].data(), shape), target(memory[1].data(), shape),
        gradient(memory[2].data(), shape);
    auto* loss = static_cast<double*>(memory[3].data());
    upload(*backend, output, golden->floats(name + ".output").data());
    upload(*backend, target, golden->floats(name + ".target").data());
    const FormulaOf<SquaredError> formula{SquaredError{}};
    backend->losses().element_losses({.formula = &formula,
                                      .output = output,
                                      .target = target,
                                      .normalizer = static_cast<double>(shape.elements()),
                                      .grad_output = gradient,
                                      .loss = loss});
    check_result(*golden, name + ".loss", {static_cast<float>(*loss)});
    check_result(*golden, name + ".grad_output", download(*backend, gradient));
  }
}

}  // namespace lockstep::oracle
