#pragma once
// What a run ran on and with: env.json.

#include <cstdint>
#include <span>

#include "core/json.h"
#include "lockstep/core/device.h"

namespace lockstep {

/// Versions, compiler, libraries, processor, cores, memory, devices, host name, time, and what the
/// clock chose so far.
Json describe_environment(std::span<const Device> devices);

/// Returns a hash of the program that runs, equal where it is the same, byte for byte.
std::string program_hash();

/// Largest memory the process has held, in MB (2^20 bytes).
double peak_memory_mb();

}  // namespace lockstep
