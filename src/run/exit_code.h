#pragma once
// What a process of this project ends with. Scripts depend on it; `main` and the `end` line of
// events.jsonl use it.

#include <exception>

namespace lockstep {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;      // command line or configuration
inline constexpr int kExitData = 3;       // data set, image, label or weight file
inline constexpr int kExitNonFinite = 4;  // loss or gradient
inline constexpr int kExitReplica = 5;    // stalled or failed
inline constexpr int kExitInterrupted = 130;

int exit_code_of(const std::exception& error);

}  // namespace lockstep
