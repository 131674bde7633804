#pragma once
// A graph as the bytes of an ONNX file. Names and numbers of the fields are those of onnx.proto3
// (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto3).

#include <string>
#include <variant>
#include <vector>

#include "core/protobuf.h"
#include "nn/onnx/graph.h"

namespace lockstep {

/// The graph's input or output. An extent is a number, or the name of one that is not fixed.
struct OnnxPort {
  std::string name;
  std::vector<std::variant<std::int64_t, std::string>> extents;
};

/// A ModelProto.
ProtobufMessage model_file(const OnnxGraph::Impl& graph, const OnnxPort& input,
                           const OnnxPort& output, const Metadata& metadata);

}  // namespace lockstep
