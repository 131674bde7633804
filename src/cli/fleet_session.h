#pragma once
// Work that several processes do together, where a launcher has started several.

#include <functional>

#include "lockstep/sync/fleet.h"

namespace lockstep {

/// Calls `work` with the processes that train together, or with null for one alone, and returns its
/// exit code. What it throws in a fleet ends all processes, with an exit code that says why.
int run_in_fleet(const std::function<int(Fleet* fleet)>& work);

}  // namespace lockstep
