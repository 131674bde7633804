#pragma once
// A data set without the samples that cannot be read.

#include <memory>

#include "lockstep/data/dataset.h"

namespace lockstep {

/// Reads every sample once, on `workers` threads beside the caller's, and leaves out those that
/// throw DataError, so that the order of the others does not depend on when a file is looked at.
/// Throws DataError when none is left.
std::unique_ptr<Dataset> leave_out_broken(std::unique_ptr<Dataset> dataset, int workers);

}  // namespace lockstep
