#include "sync/watchdog.h"

#include <algorithm>
#include <mutex>

#include "lockstep/core/check.h"
#include "sync/describe.h"

namespace lockstep {

Watchdog::Watchdog(std::chrono::milliseconds timeout, LongestWait longest_wait, OnStall on_stall)
    : timeout_(timeout),
      interval_(
          std::clamp(timeout / 8, std::chrono::milliseconds(1), std::chrono::milliseconds(1000))),
      longest_wait_(std::move(longest_wait)),
      on_stall_(std::move(on_stall)),
      looked_(Clock::now()),
      resumed_(looked_ - timeout) {
  if (timeout_.count() > 0) thread_ = threading::Thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, interval_, [this] { return stop_; })) {
    if (check()) return;
  }
}

// A thread that only sleeps and looks is late by half a timeout when nothing of the process ran.
void Watchdog::notice_stop() {
  const Clock::time_point now = Clock::now();
  if (now - looked_ > interval_ + timeout_ / 2) resumed_ = now;
  looked_ = now;
}

bool Watchdog::check() {
  const std::optional<AnyBarrier::Wait> wait = longest_wait_();
  notice_stop();
  if (!wait || wait->longest < timeout_ || looked_ - resumed_ < timeout_) return false;
  const double limit = std::chrono::duration<double>(timeout_).count();
  on_stall_(std::make_exception_ptr(StalledError(
      concat("stalled: no progress within ", describe_seconds(limit), ": ", wait->report))));
  return true;
}

}  // namespace lockstep
