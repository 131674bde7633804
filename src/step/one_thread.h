#pragma once
// An object that one thread at a time may use says so to a second one.

#include <atomic>
#include <thread>

#include "lockstep/core/check.h"

namespace lockstep {

/// Safe from any thread; it costs an atomic exchange per call.
class OneThread {
 public:
  /// A call of the object, while it lives. A thread's calls may contain one another.
  class Call {
   public:
    /// `what`: of the call, a literal. Throws Error where another thread is in one.
    Call(OneThread& object, const char* what) : object_(object), outermost_(object.enter(what)) {}
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() {
      if (outermost_) object_.user_ = std::thread::id();
    }

   private:
    OneThread& object_;
    const bool outermost_;
  };

 private:
  bool enter(const char* what) {
    std::thread::id user;  // nobody
    if (user_.compare_exchange_strong(user, std::this_thread::get_id())) {
      what_ = what;
      return true;
    }
    LOCKSTEP_CHECK(user == std::this_thread::get_id(), what, " is called while another thread is ",
                   "in ", what_.load(), ": a DataParallel is used by one thread at a time");
    return false;
  }

  std::atomic<std::thread::id> user_{};
  std::atomic<const char*> what_{"a call"};
};

}  // namespace lockstep
