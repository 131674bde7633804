#pragma once
// Images as they were before they were normalised for the network.

#include <cstddef>

#include "lockstep/data/batch.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

/// Image `place` of the batch: the way back from what the loader has made of 0..255, rounded, and
/// cut off where augmentation has led beyond.
Image denormalize(const Batch& batch, std::size_t place, const DataOptions& options);

}  // namespace lockstep
