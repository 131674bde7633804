#pragma once
// What the clock chose for this process (lockstep/backend/autotuner.h), as runs record and report
// it.

#include <filesystem>
#include <optional>
#include <string>

#include "train/run_log.h"

namespace lockstep {

/// All choices so far, for env.json: [{"machine", "problem", "choice",
/// "milliseconds", "origin"}].
Json describe_choices();

/// One line for people: how many problems are solved by which implementation, and who says so.
/// Nothing when there was no choice.
std::optional<std::string> summarize_choices();

/// What this process solves by another implementation than the run whose env.json this is, in a
/// sentence for people; nothing when there is no difference, or no such file.
std::optional<std::string> changed_choices(const std::filesystem::path& environment);

}  // namespace lockstep
