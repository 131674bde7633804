#pragma once
// How many threads CPU devices may have, and why.

#include <string>

namespace lockstep {

/// "2, as many as cores", "1 of 2 cores, by a quota of 1.00 (cgroup)".
std::string describe_host_threads();

}  // namespace lockstep
