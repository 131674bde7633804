#pragma once
// ONNX files, read back field by field: a reader of Protocol Buffers, what it finds in a file, and
// models to export.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/nn/onnx.h"
#include "nn/harness.h"
#include "support/temporary_folder.h"

namespace lockstep::test {

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
inline std::string extents_of(const Message& value_info) {
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
    weights = state_dict(store, *backend);
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
inline ExportedModel exported(const Describe& describe, const NormLayer& norm = {}) {
  return ExportedModel(
      [describe](NetworkBuilder& net, Value* x, const NormLayer&) -> Outputs {
        return {{"out", describe(net, x)}};
      },
      norm);
}

}  // namespace lockstep::test
