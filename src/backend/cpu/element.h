#pragma once
// Elements of activations on the CPU: float or BFloat16 in memory, always float in registers. What
// reads or writes them is a template over that type, and rounds once per result.

#include <cstdint>

#include "backend/bfloat16.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Throws Error unless the CPU computes on activations of this type.
void check_computes(DType dtype);

/// function(T{}) with the element type T of `dtype`, within loops. REQUIRES: check_computes().
template <typename Function>
auto with_computed_type(DType dtype, const Function& function) {
  return dtype == DType::kBFloat16 ? function(BFloat16{}) : function(float{});
}

/// The same. Throws Error for a type that the CPU does not compute on.
template <typename Function>
auto with_element_type(DType dtype, const Function& function) {
  check_computes(dtype);
  return with_computed_type(dtype, function);
}

/// A row of a tensor. REQUIRES: T is its type.
template <typename T>
T* row_of(const Tensor& tensor, std::int64_t row) {
  return static_cast<T*>(tensor.data) + row * tensor.row_stride;
}

}  // namespace lockstep
