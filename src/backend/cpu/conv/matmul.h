#pragma once
// Convolutions as matrix products, one for each position of the kernel: the pixels of all images
// are the rows. Of a 1x1 convolution it is one product. Pixels that a position of the kernel finds
// outside of the image take no part in its product.

#include <cstdint>
#include <memory>

#include "backend/cpu/conv/convolution.h"
#include "lockstep/backend/convolutions.h"
#include "lockstep/core/shape.h"

namespace lockstep {

/// Whether the pass can be computed at all: one group, and at most 3x3 positions of the kernel
/// where it is not the gradient of the weights; any stride, padding and dilation.
bool matmul_supports(const ConvGeometry& geometry, ConvPass pass);
/// Whether half of the products of an image, or more, are of padding: as where a kernel's dilation
/// is nearly as large as the image.
bool matmul_skips_padding(const ConvGeometry& geometry, const Shape& input);

/// `input` is the largest input: smaller batches may be passed to the same object. `lanes`: floats
/// per vector of the computation, 8 or 16. Either works on any processor and gives the same bits.
/// REQUIRES: matmul_supports(geometry, the pass that is run).
std::unique_ptr<Convolution> make_matmul_convolution(const ConvGeometry& geometry,
                                                     const Shape& input, int threads, int lanes);

}  // namespace lockstep
