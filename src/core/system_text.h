#pragma once
// What the system says of an error.

#include <string>

namespace lockstep {

/// Says what `error`, as errno, means, and what to do where a limit of the process is the cause.
std::string system_text(int error);

}  // namespace lockstep
