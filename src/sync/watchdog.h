#pragma once
// Ends waits that last too long: a thread that looks at the barriers now and then and aborts them
// with a report. It never touches a device, so it works when everything else is stuck. Time for
// which the whole process was stopped (Ctrl-Z, a closed lid) is nobody's wait: the timeout starts
// anew.

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/sync/barrier.h"
#include "lockstep/sync/threading.h"

namespace lockstep {

/// Owned by a communicator group; joins its thread when destroyed.
class Watchdog {
 public:
  /// Both are called on the watchdog's thread. `longest_wait`: nullopt when nobody waits; its
  /// report is the error's text. `on_stall` is called at most once.
  using LongestWait = std::function<std::optional<AnyBarrier::Wait>()>;
  using OnStall = std::function<void(std::exception_ptr)>;

  /// A `timeout` of 0 starts no thread.
  Watchdog(std::chrono::milliseconds timeout, LongestWait longest_wait, OnStall on_stall);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  using Clock = threading::Clock;

  void watch();
  bool check();
  void notice_stop();

  const std::chrono::milliseconds timeout_, interval_;
  const LongestWait longest_wait_;
  const OnStall on_stall_;
  threading::Mutex mutex_;
  threading::Condition stopped_;
  bool stop_ = false;
  Clock::time_point looked_;   // when it last looked at the barriers
  Clock::time_point resumed_;  // when the process last went on after a stop
  threading::Thread thread_;
};

}  // namespace lockstep
