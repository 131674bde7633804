#pragma once
// Convolutions of many small groups, as those of ResNeXt, by direct sums: a vector holds the output
// channels of several groups, and what each of them reads is spread over its lanes in registers.

#include <memory>

#include "backend/cpu/convolution.h"

namespace lockstep {

/// Whether the pass can be computed at all: groups of four or eight channels on both sides,
/// together whole vectors; any kernel, padding and dilation; any stride, but 1 for the gradient of
/// the input.
bool grouped_supports(const ConvGeometry& geometry, ConvPass pass);

/// `input` is the largest input: smaller batches may be passed to the same object. `lanes`: floats
/// per vector of the computation, 8 or 16. Either works on any processor and gives the same bits.
/// REQUIRES: grouped_supports(geometry, the pass that is run).
std::unique_ptr<Convolution> make_grouped_convolution(const ConvGeometry& geometry,
                                                      const Shape& input, int threads, int lanes);

}  // namespace lockstep
