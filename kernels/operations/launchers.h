#pragma once
// Launchers that are no operation of a Backend: what its operations are composed of, and what
// convolutions need besides cuDNN. A launcher takes a Context first; it checks its arguments,
// starts its kernels on the context's stream and returns.

#include <cstdint>
#include <span>

#include "kernels/primitives/context.h"
#include "lockstep/core/tensor.h"

namespace lockstep::gpu {

// --- pointwise.cu

/// Any element type.
void fill(const Context& context, const Tensor& tensor, float value);
/// Converts between fp32, bf16 and fp16; equal types may be any without `accumulate`.
void copy(const Context& context, const Tensor& source, const Tensor& destination, bool accumulate);

// --- bias.cu: the bias of a convolution, which cuDNN's plain convolutions leave out. A bias and
// its gradient are fp32, activations fp32, bf16 or fp16.

/// y += bias [C] in every row.
void add_bias(const Context& context, const float* bias, const Tensor& y);
/// grad_bias [C] += column sums of grad_y, as compensated sums.
void bias_gradient(const Context& context, const Tensor& grad_y, float* grad_bias);

// --- random.cu: numbers without a meaning, for operands of what is timed

/// Sets a dense tensor of fp32, bf16 or fp16 to numbers in [-1, 1), a function of `seed` and the
/// element's place only. Throws Error for other tensors.
void fill_random(const Context& context, const Tensor& tensor, std::uint64_t seed);

// --- weights.cu: orders of convolution weights, PyTorch's [out, in, taps] and the channels-last
// [out, taps, in] that cuDNN's engines are faster with

/// `batch` dense matrices, one after another.
struct Matrices {
  std::int64_t batch = 1, rows = 0, columns = 0;
};

/// to[b][c][r] = from[b][r][c], or +=. The memory must not overlap.
struct Transposition {
  Matrices shape;
  const void* from = nullptr;
  void* to = nullptr;
};

/// Any number of transpositions between the same types, in one launch (64 a launch, where there are
/// more): fp32, bf16 or fp16 each, so that fp32 weights become those of a bf16 convolution.
/// Matrices of one column keep their order. Throws Error for other types, or for extents that are
/// negative or reach 2^31.
void transpose(const Context& context, std::span<const Transposition> all, DType from, DType to,
               bool accumulate);

}  // namespace lockstep::gpu
