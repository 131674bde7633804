#pragma once
// A data set one of whose classes does not count: data.ignore_index below the number of classes.

#include <memory>

#include "lockstep/data/dataset.h"

namespace lockstep {

/// The same samples, whose labels `from` have become `to`.
std::unique_ptr<Dataset> relabelled(std::unique_ptr<Dataset> dataset, Label from, Label to);

}  // namespace lockstep
