#pragma once
// Ctrl-C: the first SIGINT or SIGTERM asks for a stop at the end of the step, the second ends the
// process at once. Installed by the commands that train.

#include <atomic>

namespace lockstep {

/// Handles SIGINT and SIGTERM for as long as it lives. One at a time per process.
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
