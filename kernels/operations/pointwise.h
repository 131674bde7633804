#pragma once
// Operations that look at one element at a time. Bits as on the CPU. Activations may be fp32, bf16
// or fp16, one type within a call except `copy`.

#include <cstdint>

#include "kernels/primitives/context.h"
#include "lockstep/backend/device_scalar.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

/// Any element type.
void fill(const Context& context, const Tensor& tensor, float value);
/// Converts between fp32, bf16 and fp16; equal types may be any without `accumulate`.
void copy(const Context& context, const Tensor& source, const Tensor& destination, bool accumulate);
void relu_forward(const Context& context, const Tensor& x, const Tensor& y);
void relu_backward(const Context& context, const Tensor& y, const Tensor& grad_y,
                   const Tensor& grad_x, bool accumulate);
void add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& y);
/// Which elements are dropped does not depend on their type.
void dropout(const Context& context, const Tensor& x, const Tensor& y, float p,
             DeviceScalar<std::uint64_t> seed, std::int64_t sample_offset, bool accumulate);

}  // namespace lockstep::gpu
