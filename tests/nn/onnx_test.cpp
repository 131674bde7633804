// ONNX files: the nodes of every layer, folded BatchNorm, and what cannot
// be exported. That other programs compute the same with them is tests/models/onnx_test.py's.

#include "nn/onnx_reader.h"
#include "support/errors.h"

namespace lockstep::test {
namespace {

Value* conv(NetworkBuilder& net, Value* x, const std::string& name, bool bias = false) {
  return net.conv2d(x, name, {.out_channels = 4, .kernel = 3, .padding = 1, .bias = bias});
}

/// gamma, beta, mean, var of "bn" in double.
struct Norm {
  explicit Norm(const ExportedModel& model)
      : gamma(model.weight("bn.weight")),
        beta(model.weight("bn.bias")),
        mean(model.weight("bn.running_mean")),
        var(model.weight("bn.running_var")) {}
  double scale(std::size_t c, double eps) const {
    return static_cast<double>(gamma[c]) / std::sqrt(static_cast<double>(var[c]) + eps);
  }
  Floats gamma, beta, mean, var;
};

/// Checks the only convolution of the file: "conv"'s of `model` with "bn" in it.
void check_folded(const ExportedModel& model, const File& file, double eps) {
  const Node& node = file.node("Conv");
  REQUIRE(node.inputs.size() == 3);
  const Norm norm(model);
  const Floats weight = model.weight("conv.weight");
  const bool biased = model.weights.contains("conv.bias");
  const Floats bias = biased ? model.weight("conv.bias") : Floats(norm.gamma.size(), 0.0F);
  const Constant& folded = file.operand(node, 1);
  const Constant& shift = file.operand(node, 2);
  REQUIRE(folded.floats.size() == weight.size());
  REQUIRE(shift.floats.size() == bias.size());
  const std::size_t each = weight.size() / bias.size();
  for (std::size_t i = 0; i < weight.size(); ++i) {
    const double expected = static_cast<double>(weight[i]) * norm.scale(i / each, eps);
    CHECK(folded.floats[i] == doctest::Approx(expected).epsilon(1e-6));
  }
  for (std::size_t c = 0; c < bias.size(); ++c) {
    const double centred = static_cast<double>(bias[c]) - static_cast<double>(norm.mean[c]);
    const double expected = static_cast<double>(norm.beta[c]) + centred * norm.scale(c, eps);
    CHECK(shift.floats[c] == doctest::Approx(expected).epsilon(1e-5));
  }
}

NormLayer norm_of(float eps, EpsMode mode = EpsMode::kAdd) {
  BatchNormOptions options;
  options.eps = eps;
  options.eps_mode = mode;
  return options;
}

class Mystery : public Layer {
 public:
  Mystery(Value* x, Value* y) : Layer("block.mystery", {x}, y) {}
  LayerTraits traits() const override { return {}; }
  void forward(Backend&, const StepContext&) override {}
  void backward(Backend&, const StepContext&, std::span<const GradTarget>) override {}
};

class LeakyRelu : public Mystery {
 public:
  using Mystery::Mystery;
  std::string export_onnx(OnnxGraph& graph) const override {
    return graph.add("LeakyRelu", {graph.tensor(inputs()[0])}, {{"alpha", 0.1F}});
  }
};

template <typename Own>
Value* append(NetworkBuilder& net, Value* x) {
  return net.append(std::make_unique<Own>(x, net.value("mystery", x->shape)));
}

/// The error of an export, which leaves no file.
std::string error_of(const ExportedModel& model, const OnnxOptions& options = {}) {
  const auto path = model.folder.path() / "refused.onnx";
  std::string text;
  try {
    save_onnx(path, model.model, model.norm, model.weights, options);
  } catch (const Error& error) {
    text = error.what();
  }
  CHECK_FALSE(std::filesystem::exists(path));
  return text;
}

void check_error(const std::string& text, const Strings& parts) {
  INFO(text);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(contains(text, part));
  }
}

}  // namespace

TEST_CASE("onnx: a file's header, input, output and metadata") {
  const ExportedModel model = exported(
      [](NetworkBuilder& net, Value* x) { return conv(net, net.max_pool2d(x, {}), "conv"); });
  const File file = model.file({.metadata = {{"lockstep.mean", "[0.5,0.5,0.5]"}, {"who", "me"}}});
  CHECK(file.model.integer(1) == 8);
  CHECK(file.model.text(2) == "lockstep");
  CHECK(file.model.message(8).text(1).empty());
  CHECK(file.model.message(8).integer(2) == 17);
  REQUIRE(file.model.messages(14).size() == 2);
  CHECK(file.model.messages(14)[0].text(1) == "lockstep.mean");
  CHECK(file.model.messages(14)[0].text(2) == "[0.5,0.5,0.5]");
  CHECK(file.graph.message(11).text(1) == "image");
  CHECK(extents_of(file.graph.message(11)) == "N, 3, H, W");
  CHECK(file.graph.message(12).text(1) == "out");
  CHECK(extents_of(file.graph.message(12)) == "N, 4, out_1, out_2");
  CHECK(file.nodes.front().inputs == Strings{"image"});
  CHECK(file.nodes.back().output == "out");
  const File fixed = model.file({.height = 32, .width = 48});
  CHECK(extents_of(fixed.graph.message(11)) == "N, 3, 32, 48");
  CHECK(extents_of(fixed.graph.message(12)) == "N, 4, 16, 24");
}

TEST_CASE("onnx: a convolution's and a pooling's windows") {
  const ExportedModel model = exported([](NetworkBuilder& net, Value* x) {
    const ConvGeometry geometry{3, 6, 3, 5, 1, 2, 2, 4, 2, 3, 3};
    x = net.max_pool2d(net.conv2d(x, "conv", geometry, true), {3, 2, 2, 1, 1, 0});
    return net.avg_pool2d(x, {2, 4, 1, 3, 1, 2});
  });
  const File file = model.file();
  REQUIRE(file.operators() == Strings{"Conv", "MaxPool", "AveragePool"});
  const Node& conv = file.nodes[0];
  CHECK(conv.ints("kernel_shape") == OnnxInts{3, 5});
  CHECK(conv.ints("strides") == OnnxInts{1, 2});
  CHECK(conv.ints("pads") == OnnxInts{2, 4, 2, 4});
  CHECK(conv.ints("dilations") == OnnxInts{2, 3});
  CHECK(conv.integer("group") == 3);
  CHECK(conv.inputs == Strings{"image", "conv.weight", "conv.bias"});
  CHECK(file.operand(conv, 1).extents == OnnxInts{6, 1, 3, 5});
  CHECK(file.operand(conv, 1).floats == model.weight("conv.weight"));
  CHECK(file.operand(conv, 2).floats == model.weight("conv.bias"));
  for (std::size_t pool : {1, 2}) {
    CHECK(file.nodes[pool].inputs == Strings{file.nodes[pool - 1].output});
  }
  CHECK(file.nodes[1].ints("kernel_shape") == OnnxInts{3, 2});
  CHECK(file.nodes[1].ints("strides") == OnnxInts{2, 1});
  CHECK(file.nodes[1].ints("pads") == OnnxInts{1, 0, 1, 0});
  CHECK(file.nodes[2].ints("pads") == OnnxInts{1, 2, 1, 2});
  CHECK(file.nodes[2].integer("count_include_pad") == 1);
}

TEST_CASE("onnx: BatchNorm with what it fuses, plain") {
  const ExportedModel model = exported(
      [](NetworkBuilder& net, Value* x) {
        Value* y = conv(net, x, "conv");
        return net.batch_norm_add_relu(y, net.relu(y), "bn");
      },
      norm_of(0.25F));
  const File file = model.file({.fold_batch_norm = false});
  REQUIRE(file.operators() == Strings{"Conv", "Relu", "BatchNormalization", "Add", "Relu"});
  const Node& bn = file.node("BatchNormalization");
  CHECK(bn.inputs ==
        Strings{file.nodes[0].output, "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"});
  CHECK(bn.number("epsilon") == 0.25F);
  for (const std::string& name :
       Strings{"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"}) {
    CHECK(file.constants.at(name).extents == OnnxInts{4});
    CHECK(file.constants.at(name).floats == model.weight(name));
  }
  CHECK(file.nodes[3].inputs == Strings{bn.output, file.nodes[1].output});
}

TEST_CASE("onnx: an epsilon that clamps is in the variances") {
  const ExportedModel model = exported(
      [](NetworkBuilder& net, Value* x) { return net.batch_norm(conv(net, x, "conv"), "bn"); },
      norm_of(0.7F, EpsMode::kClamp));
  const File file = model.file({.fold_batch_norm = false});
  const Node& bn = file.node("BatchNormalization");
  CHECK(bn.number("epsilon") == 0);
  Floats var = model.weight("bn.running_var");
  const Floats own = var;
  for (float& v : var) v = std::max(v, 0.7F);
  CHECK(var != own);  // else this test could not fail
  CHECK(file.operand(bn, 4).floats == var);
}

TEST_CASE("onnx: BatchNorm becomes part of the convolution before it") {
  for (const bool bias : {false, true}) {
    CAPTURE(bias);
    const ExportedModel model =
        exported([bias](NetworkBuilder& net,
                        Value* x) { return net.batch_norm_relu(conv(net, x, "conv", bias), "bn"); },
                 norm_of(0.25F));
    const File file = model.file();
    REQUIRE(file.operators() == Strings{"Conv", "Relu"});
    CHECK(file.constants.size() == 2);
    CHECK(file.nodes[0].output == "conv/Conv");
    CHECK(file.nodes[1].inputs == Strings{"conv/Conv"});
    check_folded(model, file, 0.25);
  }
}

TEST_CASE("onnx: BatchNorm of a grouped convolution, and a frozen one without weights of its own") {
  const ExportedModel model = exported(
      [](NetworkBuilder& net, Value* x) {
        x = net.conv2d(x, "conv", {.out_channels = 6, .kernel = 3, .groups = 3});
        return net.batch_norm(x, "bn");
      },
      norm_of(0.5F));
  check_folded(model, model.file(), 0.5);

  BatchNormOptions options;
  options.affine = false;
  const ExportedModel frozen = exported(
      [options](NetworkBuilder& net, Value* x) { return FrozenBatchNorm(options)(net, x, "bn"); });
  const File file = frozen.file();
  CHECK(file.operators() == Strings{"BatchNormalization"});
  CHECK(file.constants.at("bn.weight").floats == Floats{1, 1, 1});
  CHECK(file.constants.at("bn.bias").floats == Floats{0, 0, 0});
}

TEST_CASE("onnx: GroupNorm is an InstanceNormalization of reshaped channels") {
  const ExportedModel model = exported([](NetworkBuilder& net, Value* x) {
    x = net.conv2d(x, "conv", {.out_channels = 6});
    return GroupNorm(3, {.eps = 0.25F})(net, x, "norm", {.relu = true, .residual = x});
  });
  const File file = model.file();
  CHECK(file.operators() == Strings{"Conv", "Shape", "Reshape", "InstanceNormalization", "Reshape",
                                    "Mul", "Add", "Add", "Relu"});
  CHECK(file.constants.at("norm.groups").ints == OnnxInts{0, 3, -1});
  CHECK(file.constants.at("norm.weight").extents == OnnxInts{6, 1, 1});
  CHECK(file.nodes[4].inputs == Strings{"norm/InstanceNormalization", "norm/Shape"});
  BatchNormOptions clamped;
  clamped.eps_mode = EpsMode::kClamp;
  const ExportedModel refused = exported(
      [clamped](NetworkBuilder& net, Value* x) { return LayerNorm(clamped)(net, x, "norm"); });
  CHECK_THROWS_WITH_AS(refused.file(), doctest::Contains("norm (lockstep::GroupNormLayer): eps"),
                       ConfigError);
}

TEST_CASE("onnx: a convolution that others read, too, or that is an output stays as it is") {
  const ExportedModel read_twice = exported([](NetworkBuilder& net, Value* x) {
    Value* y = conv(net, x, "conv");
    return net.add(net.batch_norm(y, "bn"), y);
  });
  CHECK(read_twice.file().operators() == Strings{"Conv", "BatchNormalization", "Add"});
  const ExportedModel two_norms = exported([](NetworkBuilder& net, Value* x) {
    Value* y = net.batch_norm(conv(net, x, "conv"), "bn");
    return net.add(net.batch_norm(y, "second"), y);
  });
  CHECK(two_norms.file().operators() == Strings{"Conv", "BatchNormalization", "Add"});
  CHECK(two_norms.file().nodes[2].inputs[1] == "conv/Conv");
  const ExportedModel two_outputs(
      [](NetworkBuilder& net, Value* x, const NormLayer& norm) -> Outputs {
        Value* y = conv(net, x, "conv");
        return {{"aux", norm(net, y, "bn")}, {"out", y}};
      });
  CHECK(two_outputs.file().operators() == Strings{"Conv"});
  CHECK(two_outputs.file({.outputs = {"aux"}}).operators() == Strings{"Conv"});
  CHECK(two_outputs.file({.outputs = {"aux"}}).nodes[0].output == "aux");
  CHECK(two_outputs.file({.outputs = {"aux"}}).graph.message(12).text(1) == "aux");
  // Both are in the file: the convolution is an output, and stays.
  const File both = two_outputs.file({.outputs = {"out", "aux"}});
  REQUIRE(both.operators() == Strings{"Conv", "BatchNormalization"});
  CHECK(both.nodes[0].output == "out");
  CHECK(both.nodes[1].inputs[0] == "out");
  CHECK(both.nodes[1].output == "aux");
  REQUIRE(both.graph.messages(12).size() == 2);
  CHECK(both.graph.messages(12)[0].text(1) == "out");
  CHECK(both.graph.messages(12)[1].text(1) == "aux");
  CHECK(extents_of(both.graph.messages(12)[1]) == "N, 4, H, W");
}

TEST_CASE("onnx: outputs that are one tensor, or the input, have names of their own") {
  const ExportedModel model([](NetworkBuilder& net, Value* x, const NormLayer&) -> Outputs {
    Value* y = net.relu(x);
    return {{"out", y}, {"dropped", net.dropout(y, 0.5F)}, {"nothing", net.dropout(x, 0.5F)}};
  });
  const File file = model.file({.outputs = {"out", "dropped", "nothing"}});
  CHECK(file.operators() == Strings{"Relu", "Identity", "Identity"});
  CHECK(file.nodes[0].output == "out");
  CHECK(file.nodes[1].inputs == Strings{"out"});
  CHECK(file.nodes[1].output == "dropped");
  CHECK(file.nodes[2].inputs == Strings{"image"});
  CHECK(file.nodes[2].output == "nothing");
  check_error(error_of(model, {.outputs = {}}), {"at least one", "0"});
  check_error(error_of(model, {.outputs = {"out", "out"}}), {"different outputs"});
}

TEST_CASE("onnx: calls of one layer share weights, unless BatchNorm makes them differ") {
  const ExportedModel model = exported([](NetworkBuilder& net, Value* x) {
    Value* once = net.conv2d(x, "conv", {.out_channels = 3});
    Value* twice = net.conv2d(once, "conv", {.out_channels = 3});
    return net.batch_norm(net.conv2d(twice, "conv", {.out_channels = 3}), "bn");
  });
  const File file = model.file();
  REQUIRE(file.operators() == Strings{"Conv", "Conv", "Conv"});
  CHECK(file.nodes[0].inputs[1] == "conv.weight");
  CHECK(file.nodes[1].inputs == Strings{file.nodes[0].output, "conv.weight"});
  CHECK(file.nodes[2].inputs[1] == "conv.weight.folded");
  CHECK(file.constants.size() == 3);
  CHECK(file.constants.at("conv.weight").floats == model.weight("conv.weight"));
}

TEST_CASE("onnx: upsampling to the size of another value, and to a fixed one") {
  for (const bool align_corners : {false, true}) {
    CAPTURE(align_corners);
    const ExportedModel model = exported([align_corners](NetworkBuilder& net, Value* x) {
      Value* small = net.max_pool2d(x, {});
      return net.concat({x, net.upsample_bilinear(small, x, align_corners)});
    });
    const File file = model.file();
    REQUIRE(file.operators() == Strings{"MaxPool", "Shape", "Shape", "Concat", "Resize", "Concat"});
    CHECK(extents_of(file.graph.message(12)) == "N, 6, H, W");
    const Node& resize = file.node("Resize");
    CHECK(resize.inputs == Strings{file.nodes[0].output, "", "", file.nodes[3].output});
    CHECK(resize.text("mode") == "linear");
    CHECK(resize.text("coordinate_transformation_mode") ==
          (align_corners ? "align_corners" : "half_pixel"));
    CHECK(file.nodes[1].inputs == Strings{file.nodes[0].output});
    CHECK(file.nodes[1].integer("start") == 0);
    CHECK(file.nodes[1].integer("end") == 2);
    CHECK(file.nodes[2].inputs == Strings{"image"});
    CHECK(file.nodes[2].integer("start") == 2);
    CHECK(file.nodes[2].integer("end") == 4);
    CHECK(file.nodes[5].integer("axis") == 1);
  }
  const ExportedModel model =
      exported([](NetworkBuilder& net, Value* x) { return net.upsample_bilinear(x, 5, 7, false); });
  CHECK(extents_of(model.file().graph.message(12)) == "N, 3, 5, 7");
}

TEST_CASE("onnx: adaptive pooling's bins, of any size and of a fixed one") {
  const ExportedModel model =
      exported([](NetworkBuilder& net, Value* x) { return net.adaptive_avg_pool2d(x, 2, 3); });
  const File any = model.file();
  CHECK(any.node("MatMul").inputs.at(1) == "image");
  CHECK(extents_of(any.graph.message(12)) == "N, 3, 2, 3");
  const File fixed = model.file({.height = 5, .width = 4});
  REQUIRE(fixed.operators() == Strings{"Transpose", "MatMul", "MatMul"});
  const Constant& rows = fixed.operand(fixed.nodes[1], 0);
  CHECK(rows.extents == OnnxInts{2, 5});
  const float third = 1.0F / 3, half = 0.5F;
  CHECK(rows.floats == Floats{third, third, third, 0, 0, 0, 0, third, third, third});
  const Constant& columns = fixed.operand(fixed.nodes[0], 0);
  CHECK(columns.extents == OnnxInts{3, 4});
  CHECK(columns.floats == Floats{half, half, 0, 0, 0, half, half, 0, 0, 0, half, half});
  const ExportedModel global =
      exported([](NetworkBuilder& net, Value* x) { return net.adaptive_avg_pool2d(x, 1, 1); });
  CHECK(global.file().operators() == Strings{"GlobalAveragePool"});
}

TEST_CASE("onnx: activations, as operators or made of some") {
  const auto nodes_of = [](const Activation& activation) {
    return exported([activation](NetworkBuilder& net, Value* x) {
             return net.activation(x, activation);
           })
        .file();
  };
  const auto operators_of = [&](const Activation& activation) {
    return nodes_of(activation).operators();
  };
  CHECK(operators_of(ActivationKind::kSigmoid) == Strings{"Sigmoid"});
  CHECK(operators_of(ActivationKind::kTanh) == Strings{"Tanh"});
  CHECK(operators_of(ActivationKind::kHardswish) == Strings{"HardSwish"});
  CHECK(operators_of(ActivationKind::kSilu) == Strings{"Sigmoid", "Mul"});
  CHECK(operators_of(ActivationKind::kGelu) == Strings{"Mul", "Erf", "Add", "Mul", "Mul"});
  CHECK(nodes_of({ActivationKind::kLeakyRelu, 0.5F}).node("LeakyRelu").number("alpha") == 0.5F);
  const File hardsigmoid = nodes_of(ActivationKind::kHardsigmoid);
  CHECK(hardsigmoid.nodes[0].number("alpha") == 1.0F / 6);
  CHECK(hardsigmoid.nodes[0].number("beta") == 0.5F);
  const File relu6 = nodes_of(ActivationKind::kRelu6);
  CHECK(relu6.operand(relu6.node("Clip"), 1).floats == Floats{0});
  CHECK(relu6.operand(relu6.node("Clip"), 2).floats == Floats{6});
  CHECK(relu6.operand(relu6.node("Clip"), 2).extents.empty());
}

TEST_CASE("onnx: PReLU, softmax, slices, products and transposed convolutions") {
  const ExportedModel model = exported([](NetworkBuilder& net, Value* x) {
    x = net.prelu(net.prelu(x, "each"), "one", false);
    x = net.mul(x, net.softmax(net.adaptive_avg_pool2d(x, 1, 1)));
    return net.conv_transpose2d(net.sub(x, net.slice_channels(x, 1, 1)), "up",
                                {.out_channels = 4,
                                 .kernel = 3,
                                 .stride = 3,
                                 .padding = 1,
                                 .output_padding = 2,
                                 .bias = true});
  });
  const File file = model.file();
  REQUIRE(file.operators() == Strings{"PRelu", "PRelu", "GlobalAveragePool", "Softmax", "Mul",
                                      "Slice", "Sub", "ConvTranspose"});
  CHECK(file.operand(file.nodes[0], 1).extents == OnnxInts{3, 1, 1});
  CHECK(file.operand(file.nodes[0], 1).floats == model.weight("each.weight"));
  CHECK(file.operand(file.nodes[1], 1).extents == OnnxInts{1, 1, 1});
  CHECK(file.nodes[3].integer("axis") == 1);
  CHECK(file.operand(file.nodes[5], 1).ints == OnnxInts{1});
  CHECK(file.operand(file.nodes[5], 2).ints == OnnxInts{2});
  CHECK(file.operand(file.nodes[5], 3).ints == OnnxInts{1});
  const Node& up = file.nodes[7];
  CHECK(up.ints("strides") == OnnxInts{3, 3});
  CHECK(up.ints("pads") == OnnxInts{1, 1, 1, 1});
  CHECK(up.ints("output_padding") == OnnxInts{2, 2});
  CHECK(file.operand(up, 1).extents == OnnxInts{3, 4, 3, 3});
  CHECK(file.operand(up, 2).floats == model.weight("up.bias"));
}

TEST_CASE("onnx: linear layers, and dropout, which is not there") {
  const ExportedModel model = exported([](NetworkBuilder& net, Value* x) {
    x = net.dropout(net.linear(x, "pixels", 5), 0.5F);
    x = net.adaptive_avg_pool2d(x, 1, 1);
    return net.dropout(net.linear(net.reshape(x, {x->shape.batch(), 5}), "fc", 7), 0.5F);
  });
  const File file = model.file();
  REQUIRE(file.operators() == Strings{"Conv", "GlobalAveragePool", "Transpose", "Reshape", "Gemm"});
  CHECK(file.operand(file.nodes[0], 1).extents == OnnxInts{5, 3, 1, 1});
  CHECK(file.operand(file.nodes[3], 1).ints == OnnxInts{0, 5});
  CHECK(file.nodes[4].integer("transB") == 1);
  CHECK(file.operand(file.nodes[4], 1).extents == OnnxInts{7, 5});
  CHECK(file.nodes[4].output == "out");
  CHECK(extents_of(file.graph.message(12)) == "N, 7");
  const ExportedModel nothing =
      exported([](NetworkBuilder& net, Value* x) { return net.dropout(x, 0.5F); });
  const File identity = nothing.file();
  CHECK(identity.operators() == Strings{"Identity"});
  CHECK(identity.nodes[0].inputs == Strings{"image"});
}

TEST_CASE("onnx: a layer of one's own exports itself, or is named") {
  const auto own = [](auto append_own) {
    return exported([append_own](NetworkBuilder& net, Value* x) {
      return conv(net, append_own(net, x), "conv");
    });
  };
  const File file = own(append<LeakyRelu>).file();
  CHECK(file.operators() == Strings{"LeakyRelu", "Conv"});
  CHECK(file.nodes[0].number("alpha") == 0.1F);
  CHECK(file.nodes[0].output == "block.mystery/LeakyRelu");
  check_error(error_of(own(append<Mystery>)), {"block.mystery", "Mystery", "export_onnx"});
  const ExportedModel summed =
      exported([](NetworkBuilder& net, Value* x) { return net.all_reduce(x); });
  check_error(error_of(summed), {"all_reduce_0 (lockstep::AllReduceLayer)"});
}

TEST_CASE("onnx: a layer that depends on the image's size is named, or the size is fixed") {
  const OnnxOptions fixed{.height = 16, .width = 24};
  const ExportedModel upsampled = exported([](NetworkBuilder& net, Value* x) {
    Value* small = net.max_pool2d(x, {});
    return net.upsample_bilinear(small, x->shape.height(), x->shape.width(), false);
  });
  check_error(error_of(upsampled), {"upsample_1 (lockstep::UpsampleLayer)", "--size"});
  CHECK(extents_of(upsampled.file(fixed).graph.message(12)) == "N, 3, 16, 24");
  const ExportedModel flat = exported([](NetworkBuilder& net, Value* x) {
    const Shape& shape = x->shape;
    return net.reshape(x, {shape.batch(), shape.elements() / shape.batch()});
  });
  check_error(error_of(flat), {"reshape_0 (lockstep::ReshapeLayer)", "--size"});
  CHECK(extents_of(flat.file(fixed).graph.message(12)) == "N, 1152");
  const ExportedModel window = exported([](NetworkBuilder& net, Value* x) {
    return net.avg_pool2d(x, {x->shape.height(), x->shape.width(), 1, 1, 0, 0});
  });
  check_error(error_of(window), {"avg_pool_0 (lockstep::AvgPoolLayer)"});
  const ExportedModel more_layers = exported([](NetworkBuilder& net, Value* x) {
    while (x->shape.height() > 100) x = net.max_pool2d(x, {});
    return net.relu(x);
  });
  check_error(error_of(more_layers), {"depends on the image's size"});
}

TEST_CASE("onnx: what is refused, and why") {
  BatchNormOptions untracked;
  untracked.track_running_stats = false;
  const ExportedModel norm =
      exported([](NetworkBuilder& net, Value* x) { return net.batch_norm(x, "bn"); }, untracked);
  check_error(error_of(norm), {"bn (lockstep::BatchNormLayer)", "track_running_stats"});
  ExportedModel model =
      exported([](NetworkBuilder& net, Value* x) { return conv(net, x, "conv"); });
  check_error(error_of(model, {.outputs = {"logits"}}), {"no output 'logits'", "out"});
  check_error(error_of(model, {.size_divisor = 8, .height = 16, .width = 20}), {"16x20", "8"});
  check_error(error_of(model, {.height = 16}), {"16x0"});
  model.weights.erase("conv.weight");
  CHECK_THROWS_AS(model.file(), DataError);
  const ExportedModel apart([](NetworkBuilder& net, Value* x, const NormLayer&) -> Outputs {
    Value* aux = net.max_pool2d(x, {});
    return {{"aux", aux}, {"out", net.upsample_bilinear(x, aux, false)}};
  });
  check_error(error_of(apart), {"upsample_1", "does not lead to the output"});
}

}  // namespace lockstep::test
