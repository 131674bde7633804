#pragma once
// What a file of weights holds, looked at tensor by tensor, and how far two files lie apart, as
// JSON that `lockstep inspect` prints. Builds no network.

#include "core/json.h"
#include "lockstep/io/weights.h"

namespace lockstep {

/// "hash", over names, types, shapes and bytes of all tensors (XXH3 of 64 bits, in hexadecimal):
/// equal for the same tensors in a safetensors and a .pth file. "tensors": of each its own hash,
/// over its bytes, its NaN and infinite values, and the range of the others; types other than
/// floats and I64 have none. "batch_norms": the layers that have a running variance. "problems": a
/// line for people for each tensor with values that are not finite and each illness of such a
/// layer.
Json examine_weights(const TensorMap& tensors);

/// "equal", the numbers of "equal_tensors", the names in "only_first" and "only_second", and the
/// "changed" tensors: their types and shapes and, where the shapes are equal, how many elements
/// differ, and how far the finite ones lie apart, also relative to the larger of two.
Json compare_weights(const TensorMap& first, const TensorMap& second);

}  // namespace lockstep
