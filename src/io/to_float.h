#pragma once
// Floating-point tensors of files as the fp32 that parameters are.

#include <cstddef>
#include <string_view>
#include <vector>

#include "lockstep/io/weights.h"

namespace lockstep {

/// Bytes of an element of the types that `to_floats` takes ("F32", "F16", "BF16", "F64"); 0 for
/// others.
std::size_t float_bytes(std::string_view dtype);

/// The values; those of F64 rounded to the nearest. REQUIRES: float_bytes, whole elements.
std::vector<float> to_floats(const HostTensor& tensor);

}  // namespace lockstep
