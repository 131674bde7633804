#pragma once
// How long something has taken, by the clock that nobody sets.

#include <chrono>

namespace lockstep {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace lockstep
