#pragma once
// Ctrl-C: the first SIGINT, SIGTERM or SIGUSR1 asks for a stop at the end of the step, the second
// SIGINT or SIGTERM ends the process at once. Installed by the commands that train.

#include <atomic>

namespace lockstep {

/// Handles SIGINT, SIGTERM and SIGUSR1, which launchers of several processes hand on (mpirun and
/// srun do, and of the others kill after a second), for as long as it lives. One at a time per
/// process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// True once a stop was asked for; to be given to TrainRequest::stop.
  const std::atomic<bool>& requested() const;
};

}  // namespace lockstep
