#pragma once
// 1x1 convolutions as the matrix products that they are: the pixels of all images are the rows.

#include <cstdint>
#include <memory>

#include "backend/cpu/convolution.h"
#include "lockstep/backend/convolutions.h"
#include "lockstep/core/shape.h"

namespace lockstep {

/// Whether the geometry can be computed at all: 1x1, no padding, one group; any stride.
bool matmul_supports(const ConvGeometry& geometry);

/// `input` is the largest input: smaller batches may be passed to the same object. `lanes`: floats
/// per vector of the computation, 8 or 16. Either works on any processor and gives the same bits.
/// REQUIRES: matmul_supports(geometry).
std::unique_ptr<Convolution> make_matmul_convolution(const ConvGeometry& geometry,
                                                     const Shape& input, int threads, int lanes);

}  // namespace lockstep
