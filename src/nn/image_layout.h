#pragma once
// The library's tensors have channels last; images of elsewhere often have them first.

#include <vector>

#include "lockstep/core/shape.h"
#include "lockstep/io/image.h"

namespace lockstep {

/// Values of samples of `shape` [N, ..., C] with channels last: where they are, or in `buffer`,
/// which grows to hold them and stays good until it is used again.
const float* channels_last(const float* values, const Shape& shape, ImageLayout layout,
                           std::vector<float>& buffer);

}  // namespace lockstep
