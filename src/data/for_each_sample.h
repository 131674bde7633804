#pragma once
// Looks at samples of a data set, several at a time.

#include <cstdint>
#include <functional>
#include <span>

#include "lockstep/core/check.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

/// Called with the sample, which it may change, or with why it cannot be read; from several threads
/// at once, each with indices of its own.
using SampleVisitor =
    std::function<void(std::int64_t index, Sample* sample, const DataError* error)>;

/// Loads every sample on the caller's thread and `workers` others, in any order. What else than a
/// DataError `visit` or a load throws ends it, and is thrown on.
void for_each_sample(const Dataset& dataset, int workers, const SampleVisitor& visit);

/// Only these samples.
void for_each_sample(const Dataset& dataset, std::span<const std::int64_t> indices, int workers,
                     const SampleVisitor& visit);

}  // namespace lockstep
