#pragma once
// What the clock chose for this process (backend/conv/autotuner.h), as runs record and report
// it.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "lockstep/sync/world.h"

namespace lockstep {

/// All choices so far, for env.json: [{"machine", "problem", "choice",
/// "milliseconds", "origin"}].
Json describe_choices();

/// One line for people: how many problems are solved by which implementation, and who says so.
/// Nothing when there was no choice.
std::optional<std::string> summarize_choices();

/// What process 0 solves by other implementations than another process on such a machine, which the
/// other takes over: replicas that were made before are to be made again.
/// [process] how many problems those are. All processes call it; throws ConfigError where the user
/// forces what process 0 does not do.
std::vector<int> follow_first_process(World& world);

/// What this process solves by another implementation than the run whose env.json this is, in a
/// sentence for people; nothing when there is no difference, or no such file.
std::optional<std::string> changed_choices(const std::filesystem::path& environment);

}  // namespace lockstep
