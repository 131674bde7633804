#pragma once
// Data sets that are others with a change: without the samples that cannot be read, a share of the
// samples, with a class that does not count (data.ignore_index below the number of classes), or
// with none that is not whole.

#include <filesystem>
#include <memory>

#include "lockstep/data/dataset.h"

namespace lockstep {

/// Reads every sample once, on `workers` threads beside the caller's, and leaves out those that
/// throw DataError, so that the order of the others does not depend on when a file is looked at.
/// Throws DataError when none is left.
std::unique_ptr<Dataset> leave_out_broken(std::unique_ptr<Dataset> dataset, int workers);

/// The training or the validation samples of a data set that is divided by the hashes of the names
/// below `root`: the smallest are `val_share` of all, rounded, and validation. Each split has one
/// sample at least. Throws DataError where there are too few.
std::unique_ptr<Dataset> share_of(std::unique_ptr<Dataset> dataset,
                                  const std::filesystem::path& root, float val_share, Split split);

/// The same samples, whose labels `from` have become `to`.
std::unique_ptr<Dataset> relabelled(std::unique_ptr<Dataset> dataset, Label from, Label to);

/// The same samples. One that does not hold what it says, such as as many values as its image has
/// pixels, or labels of the image's size, throws DataError when it is loaded.
std::unique_ptr<Dataset> whole_samples(std::unique_ptr<Dataset> dataset, Task task);

}  // namespace lockstep
