#pragma once
// The share of the processors that containers and schedulers allow a process.

#include <filesystem>
#include <optional>

namespace lockstep {

/// Processors' worth of time, as 1.5, that the control groups of this process allow it, of both
/// versions, the least of all levels; nullopt: as much as there is. `root`: where /proc and /sys
/// lie.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace lockstep
