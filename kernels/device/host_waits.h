#pragma once
// The waits of a replica's thread for its device. They have no end of their own: a device that
// hangs keeps the thread for ever. So whoever may speak to other threads, the run's watchdog, can
// see how long a wait has lasted.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "kernels/device/device.h"

namespace lockstep::gpu {

/// Waits are of the replica's thread, one at a time; any thread may look.
class HostWaits {
 public:
  using Clock = std::chrono::steady_clock;

  /// A wait, as long as the object lives.
  class Wait {
   public:
    explicit Wait(HostWaits& waits) : waits_(waits) {
      waits_.since_ = Clock::now().time_since_epoch().count();
    }
    ~Wait() { waits_.since_ = 0; }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    HostWaits& waits_;
  };

  /// Returns when what the event recorded is done.
  void wait_for(const Event& event) {
    const Wait wait(*this);
    event.synchronize();
  }

  /// How long the present wait has lasted; nullopt: there is none.
  std::optional<Clock::duration> present() const {
    const Clock::rep since = since_;
    if (since == 0) return std::nullopt;
    return Clock::now().time_since_epoch() - Clock::duration(since);
  }

 private:
  std::atomic<Clock::rep> since_{0};  // 0: no wait
};

}  // namespace lockstep::gpu
