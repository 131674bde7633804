#pragma once
// What the nodes of an ONNX file are told beside their inputs.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace lockstep {

using OnnxInts = std::vector<std::int64_t>;

/// ONNX's number for fp32: what a Cast is `to`.
inline constexpr std::int64_t kOnnxFloat = 1;

/// An attribute of a node.
struct OnnxAttribute {
  std::string name;
  std::variant<std::int64_t, float, std::string, OnnxInts> value;

  friend bool operator==(const OnnxAttribute&, const OnnxAttribute&) = default;
};

}  // namespace lockstep
