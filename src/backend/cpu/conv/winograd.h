#pragma once
// 3x3 convolutions by Winograd's F(m x m, 3x3) on blocks of tiles that fit the second-level cache;
// the formulas are in winograd/filter.h. Results do not depend on the number of threads.

#include <memory>

#include "backend/cpu/conv/convolution.h"

namespace lockstep {

/// Whether the geometry can be computed at all: 3x3, stride 1, one group, padding of none, one or
/// two times the dilation.
bool winograd_supports(const ConvGeometry& geometry);

/// Whether it is worth it: supported, and at least 16 channels on both sides, nearly multiples of
/// 16 (the rest of a group of 16 costs as much as if it were there).
bool winograd_pays(const ConvGeometry& geometry);

/// Whether at least half of the pixels of the tiles over an output lie inside it. With a dilation
/// that is near the image's extent the sub-grids have few pixels. REQUIRES: supported.
bool winograd_fits(const ConvGeometry& geometry, const Shape& input, int tile);

/// `input` is the largest input: smaller batches may be passed to the same object. `lanes`: floats
/// per vector of the computation, 8 or 16. Either works on any processor and gives the same bits,
/// but one above simd::native_lanes() is slow. `tile`: m, 2 for fp32 tensors, or 4, which takes 36
/// products in place of 64 and has three times the rounding error.
/// REQUIRES: winograd_supports(geometry).
std::unique_ptr<Convolution> make_winograd_convolution(const ConvGeometry& geometry,
                                                       const Shape& input, int threads, int lanes,
                                                       int tile, DType dtype = DType::kFloat32);

}  // namespace lockstep
