#pragma once
// What training batches of a data set will be: what a loader makes, and what is wrong before it is
// made.

#include <cstdint>

#include "lockstep/data/dataset.h"

namespace lockstep {

struct BatchPlan {
  Size size;           // of the images of every batch
  Size unpadded_size;  // the same without what fills them up to multiples of the divisor
  std::int64_t samples_per_epoch = 0;  // crops_per_image of every image
  std::int64_t batches_per_epoch = 0;
};

/// Of the training split `dataset`. Reads headers where nothing else says the size. Throws
/// ConfigError for options that do not fit, for images of different sizes that nothing makes equal
/// and where no batch is left; DataError for a header that cannot be read.
BatchPlan plan_batches(const DataOptions& options, const Dataset& dataset, std::int64_t batch,
                       bool drop_last, int divisor);

}  // namespace lockstep
