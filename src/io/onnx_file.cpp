#include "io/onnx_file.h"

#include <bit>
#include <span>
#include <string_view>

namespace lockstep {
namespace {

constexpr std::int64_t kIrVersion = 8, kOpset = 17;
constexpr std::int64_t kInt64 = 7;  // TensorProto.DataType, as kOnnxFloat

// AttributeProto's fields and the numbers of their types.
struct AttributeWriter {
  ProtobufMessage& message;

  void operator()(std::int64_t value) const {
    message.add_int(3, value);
    add_type(2);
  }
  void operator()(float value) const {
    message.add_float(2, value);
    add_type(1);
  }
  void operator()(const std::string& value) const {
    message.add_bytes(4, value);
    add_type(3);
  }
  void operator()(const OnnxInts& values) const {
    for (const std::int64_t value : values) message.add_int(8, value);
    add_type(7);
  }

 private:
  void add_type(std::int64_t type) const { message.add_int(20, type); }

 public:
  explicit AttributeWriter(ProtobufMessage& attribute) : message(attribute) {}
};

ProtobufMessage node_proto(const OnnxNode& node) {
  ProtobufMessage proto;
  for (const std::string& input : node.inputs) proto.add_bytes(1, input);
  proto.add_bytes(2, node.output);
  proto.add_bytes(3, node.output);  // the node's own name
  proto.add_bytes(4, node.op_type);
  for (const OnnxAttribute& attribute : node.attributes) {
    ProtobufMessage message;
    message.add_bytes(1, attribute.name);
    std::visit(AttributeWriter(message), attribute.value);
    proto.add_message(5, message);
  }
  return proto;
}

template <typename T>
std::string_view raw_bytes(const std::vector<T>& values) {
  static_assert(std::endian::native == std::endian::little, "raw_data is little-endian");
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

ProtobufMessage tensor_proto(const std::string& name, const OnnxConstant& constant) {
  ProtobufMessage proto;
  for (const std::int64_t extent : constant.extents) proto.add_int(1, extent);
  const bool is_float = constant.ints.empty();
  proto.add_int(2, is_float ? kOnnxFloat : kInt64);
  proto.add_bytes(8, name);
  proto.add_bytes(9, is_float ? raw_bytes(constant.floats) : raw_bytes(constant.ints));
  return proto;
}

// ValueInfoProto { name, type { tensor_type { elem_type, shape { dim ... } } } }.
ProtobufMessage value_info_proto(const OnnxPort& port) {
  ProtobufMessage shape, tensor, type, proto;
  for (const auto& extent : port.extents) {
    ProtobufMessage dimension;
    if (const auto* number = std::get_if<std::int64_t>(&extent)) dimension.add_int(1, *number);
    if (const auto* name = std::get_if<std::string>(&extent)) dimension.add_bytes(2, *name);
    shape.add_message(1, dimension);
  }
  tensor.add_int(1, kOnnxFloat);
  tensor.add_message(2, shape);
  type.add_message(1, tensor);
  proto.add_bytes(1, port.name);
  proto.add_message(2, type);
  return proto;
}

ProtobufMessage graph_proto(const std::vector<OnnxNode>& nodes,
                            const std::map<std::string, OnnxConstant>& constants,
                            const OnnxPort& input, const std::vector<OnnxPort>& outputs) {
  ProtobufMessage proto;
  for (const OnnxNode& node : nodes) proto.add_message(1, node_proto(node));
  proto.add_bytes(2, "lockstep");
  for (const auto& [name, constant] : constants) {
    proto.add_message(5, tensor_proto(name, constant));
  }
  proto.add_message(11, value_info_proto(input));
  for (const OnnxPort& output : outputs) proto.add_message(12, value_info_proto(output));
  return proto;
}

}  // namespace

ProtobufMessage onnx_file(const std::vector<OnnxNode>& nodes,
                          const std::map<std::string, OnnxConstant>& constants,
                          const OnnxPort& input, const std::vector<OnnxPort>& outputs,
                          const Metadata& metadata) {
  ProtobufMessage opset, proto;
  opset.add_bytes(1, "");  // the domain of ONNX's own operators
  opset.add_int(2, kOpset);
  proto.add_int(1, kIrVersion);
  proto.add_bytes(2, "lockstep");
  proto.add_message(7, graph_proto(nodes, constants, input, outputs));
  proto.add_message(8, opset);
  for (const auto& [key, value] : metadata) {
    ProtobufMessage entry;
    entry.add_bytes(1, key);
    entry.add_bytes(2, value);
    proto.add_message(14, entry);
  }
  return proto;
}

}  // namespace lockstep
