#pragma once
// Convolutions of bf16 tensors as products of bf16 numbers: weights are rounded to bf16, which
// keeps 8 bits of a mantissa's 24, sums are fp32.

#include <memory>

#include "backend/cpu/conv/bf16/instructions.h"
#include "backend/cpu/conv/convolution.h"

namespace lockstep {

/// Whether the geometry can be computed at all: one group, the same stride in both directions, no
/// padding beyond the kernel.
bool bf16_supports(const ConvGeometry& geometry);

/// `input` is the largest input: smaller batches may be passed to the same object.
/// REQUIRES: bf16_supports(geometry), usable(instructions).
std::unique_ptr<Convolution> make_bf16_convolution(const ConvGeometry& geometry, const Shape& input,
                                                   int threads, bf16::Instructions instructions);

}  // namespace lockstep
