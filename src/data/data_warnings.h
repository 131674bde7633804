#pragma once
// What is wrong with a data set: the sentences of `data check` and of a training's start.

#include <string>
#include <vector>

#include "data/data_check.h"
#include "lockstep/data/dataset.h"
#include "lockstep/io/image.h"

namespace lockstep {

/// What is likely to be a mistake, a sentence with its remedy each: black-and-white masks, classes
/// that never occur, images without labels, crops that no image fills half. Of a split of which
/// only a part was examined, what that part can tell.
std::vector<std::string> data_warnings(const SplitReport& split, const DataOptions& options);

/// Adds that training images are padded (LoaderOptions::divisor), where they are.
void warn_of_padding(Size size, Size padded, std::vector<std::string>& warnings);

/// Adds what the layout does not take (Dataset::left_out), and what data.skip_broken left out: how
/// many, and which.
void warn_of_skipped(const Dataset& dataset, std::vector<std::string>& warnings);

}  // namespace lockstep
