#pragma once
// Samples that a data set holds more than once, and validation images that are trained on.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/data_check.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

/// Samples that are in a split twice, and in both: told by what they are called, without reading
/// them.
std::vector<std::string> repetition_warnings(const Dataset& train, const Dataset& val,
                                             const DataOptions& options);

/// Validation images whose pixels are a training image's, too, as (training sample, validation
/// sample), each once. Compares those of equal hash.
std::vector<std::pair<std::int64_t, std::int64_t>> find_duplicates(const Dataset& train,
                                                                   const SplitReport& train_report,
                                                                   const Dataset& val,
                                                                   const SplitReport& val_report);

}  // namespace lockstep
