#pragma once
// The first failure of a run. It is sticky: whatever waits, now or later, throws PeerAborted, so
// that one failure ends all threads. One object is shared by all that waits for other ranks.

#include <exception>
#include <vector>

#include "lockstep/sync/threading.h"

namespace lockstep {

/// Safe from any thread. Outlives its listeners.
class Failure {
 public:
  /// Where threads wait, or what works on a device and has to end.
  class Listener {
   public:
    /// Called once, by the thread that raises, after `raised` has become true. Raises nothing and
    /// adds no listener.
    virtual void end_waits() = 0;

   protected:
    ~Listener() = default;
  };

  Failure() = default;
  Failure(const Failure&) = delete;
  Failure& operator=(const Failure&) = delete;

  /// Keeps the cause and tells the listeners, the last one added first. Does nothing when there is
  /// a cause already. Returns whether this was the first.
  bool raise(std::exception_ptr cause);
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  /// Null when none was raised.
  std::exception_ptr cause() const;

  void add(Listener& listener);
  /// Returns when the listener is not called any more.
  void remove(Listener& listener);

 private:
  threading::Atomic<bool> raised_{false};
  mutable threading::Mutex mutex_;
  std::exception_ptr cause_;
  threading::Mutex listeners_mutex_;  // held while they are called
  std::vector<Listener*> listeners_;
};

}  // namespace lockstep
