#pragma once
// Ctrl-C: the first SIGINT or SIGTERM, and SIGUSR1 and SIGHUP, ask for a stop at the end of the
// step, the second SIGINT or SIGTERM ends the process at once. Installed by the commands that
// train.

#include <atomic>

namespace lockstep {

/// Handles SIGINT, SIGTERM, SIGUSR1, which launchers of several processes hand on (mpirun and srun
/// do, and of the others kill after a second), and SIGHUP, of a terminal that is gone (under nohup
/// it stays ignored), for as long as it lives. Who reads the output may end meanwhile: a training
/// goes on without SIGPIPE. One at a time per process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// True once a stop was asked for; to be given to TrainRequest::stop.
  const std::atomic<bool>& requested() const;

 private:
  using Handler = void (*)(int);
  Handler hang_up_, broken_pipe_;  // what was there before
};

}  // namespace lockstep
