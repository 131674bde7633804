#include "sync/watchdog.h"

#include <algorithm>

#include "lockstep/core/check.h"
#include "sync/describe.h"

namespace lockstep {

Watchdog::Watchdog(std::chrono::milliseconds timeout, LongestWait longest_wait, OnStall on_stall)
    : timeout_(timeout), longest_wait_(std::move(longest_wait)), on_stall_(std::move(on_stall)) {
  if (timeout_.count() > 0) thread_ = std::thread([this] { watch(); });
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
  using std::chrono::milliseconds;
  const milliseconds interval = std::clamp(timeout_ / 8, milliseconds(1), milliseconds(1000));
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, interval, [this] { return stop_; })) {
    if (check()) return;
  }
}

bool Watchdog::check() const {
  const std::optional<SyncMaster::Wait> wait = longest_wait_();
  if (!wait || wait->longest < timeout_) return false;
  const double limit = std::chrono::duration<double>(timeout_).count();
  on_stall_(std::make_exception_ptr(StalledError(
      concat("stalled: no progress within ", describe_seconds(limit), ": ", wait->report))));
  return true;
}

}  // namespace lockstep
