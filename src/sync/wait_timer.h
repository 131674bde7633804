#pragma once

#include <chrono>

#include "lockstep/sync/threading.h"

namespace lockstep {

/// Adds the life time of the object, in seconds, to a total.
class WaitTimer {
 public:
  explicit WaitTimer(double& total) : total_(total) {}
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;
  ~WaitTimer() {
    total_ += std::chrono::duration<double>(threading::Clock::now() - start_).count();
  }

 private:
  double& total_;
  const threading::Clock::time_point start_ = threading::Clock::now();
};

}  // namespace lockstep
