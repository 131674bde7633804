#pragma once

#include <chrono>

namespace lockstep {

/// Adds the life time of the object, in seconds, to a total.
class WaitTimer {
 public:
  explicit WaitTimer(double& total) : total_(total) {}
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;
  ~WaitTimer() {
    total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double& total_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace lockstep
