#include <algorithm>
#include <mutex>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/sync/barrier.h"

namespace lockstep {

bool Failure::raise(std::exception_ptr cause) {
  if (!cause) {
    cause = std::make_exception_ptr(ReplicaError(
        "a replica failed and gave no cause (a null exception_ptr: std::current_exception() is "
        "null outside of a catch block)"));
  }
  {
    const std::lock_guard lock(mutex_);
    if (cause_) return false;
    cause_ = std::move(cause);
    raised_.store(true, std::memory_order_release);
  }
  const std::lock_guard lock(listeners_mutex_);
  std::for_each(listeners_.rbegin(), listeners_.rend(),
                [](Listener* listener) { listener->end_waits(); });
  return true;
}

std::exception_ptr Failure::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

void Failure::add(Listener& listener) {
  const std::lock_guard lock(listeners_mutex_);
  listeners_.push_back(&listener);
}

void Failure::remove(Listener& listener) {
  const std::lock_guard lock(listeners_mutex_);
  listeners_.erase(std::find(listeners_.begin(), listeners_.end(), &listener));
}

}  // namespace lockstep
