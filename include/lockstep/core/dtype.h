#pragma once
// Element types of tensors. Statistics and parameters are always kFloat32, whatever activations
// are.

#include <cstddef>
#include <cstdint>

namespace lockstep {

enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat16, kUInt8, kUInt16 };

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
    case DType::kUInt16:
      return 2;
    case DType::kUInt8:
      return 1;
  }
  return 0;
}

constexpr const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "fp32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
    case DType::kUInt8:
      return "uint8";
    case DType::kUInt16:
      return "uint16";
  }
  return "?";
}

}  // namespace lockstep
