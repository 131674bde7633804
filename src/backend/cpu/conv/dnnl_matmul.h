#pragma once
// Convolutions of bf16 tensors as oneDNN's matrix products: of a 1x1 kernel a block of an image's
// pixels times the weights; of the gradient of the weights, for each position of the kernel, a
// slice of the channels of the output's gradient times one of the input's.

#include <memory>

#include "backend/cpu/conv/convolution.h"

namespace lockstep {

/// Whether it can compute the pass on this processor: one group, and a 1x1 kernel without padding
/// where it is not the gradient of the weights.
bool dnnl_matmul_supports(const ConvGeometry& geometry, ConvPass pass);

/// Weights are rounded to bf16, sums are fp32. `input` is the largest input: smaller batches may be
/// passed to the same object. On the thread that will use it.
/// REQUIRES: dnnl_matmul_supports(geometry, the pass that is run).
std::unique_ptr<Convolution> make_dnnl_matmul_convolution(const ConvGeometry& geometry,
                                                          const Shape& input, int threads);

}  // namespace lockstep
