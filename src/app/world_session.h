#pragma once
// Work that several processes do together, where a launcher has started several.

#include <functional>
#include <string>

#include "lockstep/sync/world.h"

namespace lockstep {

/// Calls `work` with the world of the processes that were started together, and returns its exit
/// code. What it throws where there are several ends all of them, with an exit code that says why.
int run_in_world(const std::function<int(World& world)>& work);

/// Throws ConfigError where a launcher has started several processes, of which `command` makes no
/// use.
void check_alone(const std::string& command);

}  // namespace lockstep
