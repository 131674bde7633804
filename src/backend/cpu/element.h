#pragma once
// Elements of activations on the CPU: float or BFloat16 in memory, always float in registers. What
// reads or writes them is a template over that type, and rounds once per result.

#include <cstdint>
#include <initializer_list>

#include "backend/bfloat16.h"
#include "backend/operand_checks.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Whether the CPU computes on activations of this type.
inline bool is_activation(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16;
}

/// Throws Error unless `activations` have one type, which the CPU computes on. Null ones may be
/// anything.
inline void check_activations(const char* operation,
                              std::initializer_list<const Tensor*> activations) {
  check_same_type(operation, activations);
  for (const Tensor* activation : activations) {
    LOCKSTEP_CHECK(!*activation || is_activation(activation->dtype), operation,
                   ": the CPU expects activations in fp32 or bf16, got ",
                   to_string(activation->dtype), "; only GPUs compute on fp16");
  }
}

/// function(T{}) with the element type T of `dtype`. REQUIRES: one of the CPU's.
template <typename Function>
auto with_element_type(DType dtype, const Function& function) {
  return dtype == DType::kBFloat16 ? function(BFloat16{}) : function(float{});
}

/// A row of a tensor. REQUIRES: T is its type.
template <typename T>
T* row_of(const Tensor& tensor, std::int64_t row) {
  return static_cast<T*>(tensor.data) + row * tensor.row_stride;
}

}  // namespace lockstep
