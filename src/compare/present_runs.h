#pragma once
// What lies in the folders of runs and of comparisons.

#include <filesystem>
#include <string>
#include <vector>

#include "compare/comparison.h"
#include "config/config.h"
#include "run/summary.h"

namespace lockstep {

/// The run folder itself, or those inside the folder of a comparison that hold a finished run, in
/// order of their names. Throws DataError when there are none.
std::vector<std::filesystem::path> finished_run_folders(const std::filesystem::path& folder);

/// A warning for each folder inside that holds a run which is not finished, and so is left out.
std::vector<std::string> left_out_runs(const std::filesystem::path& folder);

/// The runs that could not be trained, by what the comparison in the folder has written; none where
/// there is no comparison. Throws DataError where that is damaged.
std::vector<FailedRun> failed_runs(const std::filesystem::path& folder);

/// A warning for each run whose configuration differs from the first's in more than mode and seed.
std::vector<std::string> config_differences(const std::vector<TrainSummary>& runs,
                                            const Tables& tables);

}  // namespace lockstep
