#pragma once
// A graph as the bytes of an ONNX file. Names and numbers of the fields are those of onnx.proto3
// (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto3).

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "io/protobuf.h"
#include "lockstep/io/onnx.h"
#include "lockstep/io/weights.h"

namespace lockstep {

struct OnnxNode {
  std::string op_type;
  std::vector<std::string> inputs;
  std::string output;  // and the node's own name
  std::vector<OnnxAttribute> attributes;
  std::string layer, layer_class;  // that it is of, for messages

  /// Of the node's contents, whichever layer it is of.
  friend bool operator==(const OnnxNode& a, const OnnxNode& b) {
    return a.op_type == b.op_type && a.inputs == b.inputs && a.output == b.output &&
           a.attributes == b.attributes;
  }
};

/// A constant: floats or ints, whichever is not empty.
struct OnnxConstant {
  OnnxInts extents;
  std::vector<float> floats;
  OnnxInts ints;

  friend bool operator==(const OnnxConstant&, const OnnxConstant&) = default;
};

/// The graph's input or one of its outputs. An extent is a number, or the name of one that is not
/// fixed.
struct OnnxPort {
  std::string name;
  std::vector<std::variant<std::int64_t, std::string>> extents;
};

/// A ModelProto. `nodes`: every one behind those whose output it reads.
ProtobufMessage onnx_file(const std::vector<OnnxNode>& nodes,
                          const std::map<std::string, OnnxConstant>& constants,
                          const OnnxPort& input, const std::vector<OnnxPort>& outputs,
                          const Metadata& metadata);

}  // namespace lockstep
