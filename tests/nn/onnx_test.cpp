// ONNX files, read back field by field: the nodes of every layer, folded BatchNorm, and what cannot
// be exported. That other programs compute the same with them is tests/models/onnx_test.py's.

#include "lockstep/nn/onnx.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

#include "nn/harness.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using Strings = std::vector<std::string>;

// --- a reader of Protocol Buffers ---

/// A message: its fields in order, a number or bytes each.
class Message {
 public:
  explicit Message(std::string_view bytes) {
    while (!bytes.empty()) fields_.push_back(take_field(bytes));
  }
  std::vector<std::string> texts(int number) const {
    Strings found;
    for (const Field& field : fields_) {
      if (field.number == number) found.emplace_back(field.bytes);
    }
    return found;
  }
  std::vector<Message> messages(int number) const {
    std::vector<Message> found;
    for (const std::string& bytes : texts(number)) found.emplace_back(bytes);
    return found;
  }
  OnnxInts ints(int number) const {
    OnnxInts found;
    for (const Field& field : fields_) {
      if (field.number == number) found.push_back(static_cast<std::int64_t>(field.value));
    }
    return found;
  }
  std::string text(int number) const { return only(texts(number)); }
  Message message(int number) const { return only(messages(number)); }
  std::int64_t integer(int number) const { return only(ints(number)); }
  bool has(int number) const { return !ints(number).empty(); }

 private:
  struct Field {
    int number = 0;
    std::uint64_t value = 0;  // also the bits of a float
    std::string bytes;
  };

  template <typename T>
  static T only(const std::vector<T>& values) {
    REQUIRE(values.size() == 1);
    return values.front();
  }
  static std::uint64_t take_varint(std::string_view& bytes) {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      REQUIRE(!bytes.empty());
      const auto byte = static_cast<unsigned char>(bytes.front());
      bytes.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  }
  static Field take_field(std::string_view& bytes) {
    const std::uint64_t key = take_varint(bytes);
    Field field{static_cast<int>(key >> 3), 0, {}};
    if ((key & 7) == 0) {
      field.value = take_varint(bytes);
    } else {
      const bool fixed32 = (key & 7) == 5;
      REQUIRE((fixed32 || (key & 7) == 2));
      const std::uint64_t size = fixed32 ? 4 : take_varint(bytes);
      REQUIRE(size <= bytes.size());
      field.bytes = bytes.substr(0, size);
      if (fixed32) std::memcpy(&field.value, bytes.data(), size);
      bytes.remove_prefix(size);
    }
    return field;
  }

  std::vector<Field> fields_;
};

template <typename T>
std::vector<T> values_of(const std::string& raw) {
  std::vector<T> values(raw.size() / sizeof(T));
  std::memcpy(values.data(), raw.data(), raw.size());
  return values;
}

// --- an ONNX file ---

struct Node {
  explicit Node(const Message& proto)
      : op_type(proto.text(4)), inputs(proto.texts(1)), output(proto.text(2)) {
    CHECK(proto.text(3) == output);
    for (const Message& attribute : proto.messages(5)) {
      attributes.emplace(attribute.text(1), attribute);
    }
  }
  /// Of an attribute that is said to be of that type.
  OnnxInts ints(const std::string& name) const { return typed(name, 7).ints(8); }
  std::int64_t integer(const std::string& name) const { return typed(name, 2).integer(3); }
  std::string text(const std::string& name) const { return typed(name, 3).text(4); }
  float number(const std::string& name) const {
    return values_of<float>(typed(name, 1).text(2)).at(0);
  }

  std::string op_type;
  Strings inputs;
  std::string output;
  std::map<std::string, Message> attributes;

 private:
  const Message& typed(const std::string& name, std::int64_t type) const {
    CAPTURE(name);
    REQUIRE(attributes.contains(name));
    CHECK(attributes.at(name).integer(20) == type);
    return attributes.at(name);
  }
};

struct Constant {
  OnnxInts extents;
  Floats floats;
  OnnxInts ints;
};

/// "N, 3, H, W" of a graph's input or output.
std::string extents_of(const Message& value_info) {
  const Message tensor = value_info.message(2).message(1);
  CHECK(tensor.integer(1) == 1);  // FLOAT
  std::string text;
  for (const Message& dimension : tensor.message(2).messages(1)) {
    text += text.empty() ? "" : ", ";
    text += dimension.has(1) && dimension.text(1).empty() ? std::to_string(dimension.integer(1))
                                                          : dimension.text(2);
  }
  return text;
}

struct File {
  explicit File(const std::filesystem::path& path) : model(read_text(path)) {
    for (const Message& node : graph.messages(1)) nodes.emplace_back(node);
    for (const Message& tensor : graph.messages(5)) {
      const bool is_float = tensor.integer(2) == 1;
      Constant constant{tensor.ints(1), {}, {}};
      if (is_float) constant.floats = values_of<float>(tensor.text(9));
      if (!is_float) constant.ints = values_of<std::int64_t>(tensor.text(9));
      CHECK(constants.emplace(tensor.text(8), constant).second);
    }
  }

  Strings operators() const {
    Strings types;
    for (const Node& node : nodes) types.push_back(node.op_type);
    return types;
  }
  const Node& node(const std::string& op_type) const {
    for (const Node& node : nodes) {
      if (node.op_type == op_type) return node;
    }
    FAIL("there is no " << op_type);
    return nodes.front();
  }
  const Constant& operand(const Node& node, std::size_t input) const {
    return constants.at(node.inputs.at(input));
  }

  Message model;
  Message graph = model.message(7);
  std::vector<Node> nodes;
  std::map<std::string, Constant> constants;
};

/// A model with weights that are all different, in a file.
struct ExportedModel {
  explicit ExportedModel(Model exported, const NormLayer& norm_layer = {})
      : model(std::move(exported)), norm(norm_layer) {
    const auto backend = make_backend(Device{}, 1);
    ParameterStore store;
    NetworkBuilder net(*backend, store, norm);
    model(net, net.input({1, 32, 32, 3}), norm);
    store.allocate(*backend);
    std::uint32_t seed = 1;
    for (const auto& p : store.parameters()) {
      upload(*backend, p->value, random_floats(p->elements, seed++));
    }
    for (const auto& state : store.batch_norms()) {
      upload(*backend, state->running_mean, random_floats(state->channels, seed++));
      Floats var = random_floats(state->channels, seed++);
      for (float& v : var) v = std::abs(v);
      upload(*backend, state->running_var, var);
    }
    weights = export_weights(store, *backend);
  }

  File file(const OnnxOptions& options = {}) const {
    const auto path = folder.path() / "model.onnx";
    save_onnx(path, model, norm, weights, options);
    return File(path);
  }
  Floats weight(const std::string& name) const {
    const std::vector<std::byte>& data = weights.at(name).data;
    return values_of<float>({reinterpret_cast<const char*>(data.data()), data.size()});
  }

  TemporaryFolder folder;
  Model model;
  NormLayer norm;
  TensorMap weights;
};

/// With one output, of what is declared of the input.
ExportedModel exported(const Describe& describe, const NormLayer& norm = {}) {
  return ExportedModel(
      [describe](NetworkBuilder& net, Value* x, const NormLayer&) -> Outputs {
        return {{"out", describe(net, x)}};
      },
      norm);
}

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

// --- what a file computes of an image's size ---

/// Of at most two extents; one has them as its columns.
struct Matrix {
  std::int64_t rows = 1, columns = 1;
  std::vector<double> values;
  bool integer = true;

  double at(std::int64_t row, std::int64_t column) const {
    return values[static_cast<std::size_t>(row % rows * columns + column % columns)];
  }
};

Matrix of_both(const std::string& op_type, const Matrix& a, const Matrix& b) {
  const std::map<std::string, std::function<double(double, double)>> operations{
      {"Mul", std::multiplies<>()},
      {"Add", std::plus<>()},
      {"Sub", std::minus<>()},
      {"And", std::logical_and<>()},
      {"Less", std::less<>()},
      {"GreaterOrEqual", std::greater_equal<>()},
      {"Div", [&](double x, double y) { return a.integer ? std::floor(x / y) : x / y; }}};
  REQUIRE(operations.contains(op_type));
  CHECK(a.integer == b.integer);
  Matrix result{std::max(a.rows, b.rows), std::max(a.columns, b.columns), {}, a.integer};
  for (std::int64_t row = 0; row < result.rows; ++row) {
    for (std::int64_t column = 0; column < result.columns; ++column) {
      result.values.push_back(operations.at(op_type)(a.at(row, column), b.at(row, column)));
    }
  }
  return result;
}

/// The tensor of that name for images of height x width.
Matrix computed(const File& file, const std::string& name, std::int64_t height,
                std::int64_t width) {
  if (file.constants.contains(name)) {
    const Constant& constant = file.constants.at(name);
    const OnnxInts& extents = constant.extents;
    return {extents.size() == 2 ? extents[0] : 1, extents.empty() ? 1 : extents.back(),
            std::vector<double>(constant.ints.begin(), constant.ints.end())};
  }
  const auto node = std::find_if(file.nodes.begin(), file.nodes.end(),
                                 [&](const Node& candidate) { return candidate.output == name; });
  REQUIRE(node != file.nodes.end());
  const auto input = [&](std::size_t k) {
    return computed(file, node->inputs.at(k), height, width);
  };
  if (node->op_type == "Shape") {
    CHECK(node->inputs == Strings{"image"});
    CHECK(node->integer("end") == node->integer("start") + 1);
    return {1, 1, {static_cast<double>(node->integer("start") == 2 ? height : width)}};
  }
  if (node->op_type == "Squeeze") return input(0);
  if (node->op_type == "Cast") {
    CHECK(node->integer("to") == 1);
    Matrix result = input(0);
    result.integer = false;
    return result;
  }
  if (node->op_type == "Range") {
    CHECK(input(0).values.at(0) == 0);
    CHECK(input(2).values.at(0) == 1);
    Matrix result{1, static_cast<std::int64_t>(input(1).values.at(0)), {}};
    for (std::int64_t i = 0; i < result.columns; ++i) {
      result.values.push_back(static_cast<double>(i));
    }
    return result;
  }
  return of_both(node->op_type, input(0), input(1));
}

/// Checks the shares of an adaptive pooling of `size` positions.
void check_bins(const Matrix& shares, std::int64_t bins, std::int64_t size) {
  CAPTURE(bins);
  CAPTURE(size);
  CHECK_FALSE(shares.integer);
  REQUIRE(shares.rows == bins);
  REQUIRE(shares.columns == size);
  for (std::int64_t bin = 0; bin < bins; ++bin) {
    const std::int64_t begin = bin * size / bins, end = ((bin + 1) * size + bins - 1) / bins;
    for (std::int64_t i = 0; i < size; ++i) {
      const double share = i >= begin && i < end ? 1.0 / static_cast<double>(end - begin) : 0.0;
      CHECK(shares.at(bin, i) == share);
    }
  }
}

class Mystery : public Layer {
 public:
  Mystery(Value* x, Value* y) : Layer("block.mystery", {x}, y) {}
  BackwardReads backward_reads() const override { return {}; }
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
  CHECK(two_outputs.file({.output = "aux"}).operators() == Strings{"Conv"});
  CHECK(two_outputs.file({.output = "aux"}).nodes[0].output == "aux");
  CHECK(two_outputs.file({.output = "aux"}).graph.message(12).text(1) == "aux");
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

TEST_CASE("onnx: the bins that a file computes are those of adaptive pooling") {
  const ExportedModel model =
      exported([](NetworkBuilder& net, Value* x) { return net.adaptive_avg_pool2d(x, 6, 4); });
  const File file = model.file();
  REQUIRE(file.nodes.back().op_type == "MatMul");
  const Node& by_columns = file.nodes.back();
  const Node& by_rows = file.node("MatMul");
  CHECK(by_rows.inputs[1] == "image");
  CHECK(by_columns.inputs[0] == by_rows.output);
  const Node& transpose = file.node("Transpose");
  CHECK(transpose.ints("perm") == OnnxInts{1, 0});
  CHECK(by_columns.inputs[1] == transpose.output);
  for (const std::int64_t height : {1, 5, 6, 11, 24}) {
    for (const std::int64_t width : {1, 3, 7, 8}) {
      check_bins(computed(file, by_rows.inputs[0], height, width), 6, height);
      check_bins(computed(file, transpose.inputs[0], height, width), 4, width);
    }
  }
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
  check_error(error_of(model, {.output = "logits"}), {"no output 'logits'", "out"});
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
