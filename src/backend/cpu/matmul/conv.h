#pragma once
// 1x1 convolutions as the matrix products that they are: the pixels of all images are the rows. And
// the gradient of any kernel's weights, which is such a product for each of its positions.

#include <cstdint>
#include <memory>

#include "backend/cpu/convolution.h"
#include "lockstep/backend/convolutions.h"
#include "lockstep/core/shape.h"

namespace lockstep {

/// Whether the pass can be computed at all: one group, and 1x1 without padding where it is not the
/// gradient of the weights; any stride.
bool matmul_supports(const ConvGeometry& geometry, ConvPass pass);

/// `input` is the largest input: smaller batches may be passed to the same object. `lanes`: floats
/// per vector of the computation, 8 or 16. Either works on any processor and gives the same bits.
/// REQUIRES: matmul_supports(geometry, the pass that is run).
std::unique_ptr<Convolution> make_matmul_convolution(const ConvGeometry& geometry,
                                                     const Shape& input, int threads, int lanes);

}  // namespace lockstep
