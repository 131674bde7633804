#pragma once
// Convolutions by oneDNN.

#include <memory>
#include <string>

#include "backend/cpu/conv/convolution.h"

namespace lockstep {

/// Any geometry, one batch size, tensors of this type. With bf16 tensors weights are rounded to
/// bf16, too, and sums are fp32. Created on the thread that will use it, because oneDNN remembers
/// the number of OpenMP threads. REQUIRES: dtype is fp32, or bf16 and dnnl_computes_bf16().
std::unique_ptr<Convolution> make_dnnl_convolution(const ConvGeometry& geometry, const Shape& input,
                                                   int threads, DType dtype);

/// Whether oneDNN has convolutions and products of bf16 tensors on this processor.
bool dnnl_computes_bf16();
/// What it multiplies their numbers by, "AMX" or "AVX512-BF16"; "" where it does so by fp32.
std::string dnnl_bf16_instructions();
/// Whether that is faster than fp32.
inline bool dnnl_gains_by_bf16() { return !dnnl_bf16_instructions().empty(); }

/// Version and instruction set, as results may depend on them: "oneDNN 2.6.0 avx2".
std::string dnnl_version();

}  // namespace lockstep
