#pragma once
// Work that several processes do together, where a launcher has started several.

#include <functional>
#include <string>

#include "lockstep/sync/fleet.h"

namespace lockstep {

/// Calls `work` with the processes that train together, or with null for one alone, and returns its
/// exit code. What it throws in a fleet ends all processes, with an exit code that says why.
int run_in_fleet(const std::function<int(Fleet* fleet)>& work);

/// Throws ConfigError where a launcher has started several processes, of which `command` makes no
/// use.
void check_alone(const std::string& command);

/// Whether this process speaks for all: there is no other, or it is process 0.
inline bool leads(const Fleet* fleet) { return fleet == nullptr || fleet->process() == 0; }

}  // namespace lockstep
