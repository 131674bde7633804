#pragma once
// What this machine's processor is called.

#include <string>

namespace lockstep {

/// Model name with family and model number, since clouds hide the name: "AMD EPYC (family 25, model
/// 1)"; "unknown" where /proc/cpuinfo does not tell.
std::string processor_name();

}  // namespace lockstep
