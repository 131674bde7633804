#include "app/signals.h"

#include <csignal>

namespace lockstep {
namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free,
              "a signal handler may touch lock-free atomics only");

// The default action comes back with the first signal, so the second one ends the process.
void request_stop(int signal) {
  stop_requested = true;
  std::signal(signal, SIG_DFL);
}

// Schedulers may repeat it while the last step and the checkpoint take their time.
void request_stop_kindly(int /*signal*/) { stop_requested = true; }

}  // namespace

StopSignals::StopSignals() {
  stop_requested = false;
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  std::signal(SIGUSR1, request_stop_kindly);
  hang_up_ = std::signal(SIGHUP, request_stop_kindly);
  if (hang_up_ == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // nohup: it is to go on
  broken_pipe_ = std::signal(SIGPIPE, SIG_IGN);
}

StopSignals::~StopSignals() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGUSR1, SIG_DFL);
  std::signal(SIGHUP, hang_up_);
  std::signal(SIGPIPE, broken_pipe_);
}

const std::atomic<bool>& StopSignals::requested() const { return stop_requested; }

}  // namespace lockstep
