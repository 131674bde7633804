#pragma once
// What an operation needs to know of the replica that calls it: it checks its arguments, starts its
// kernels on the context's stream and returns.

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "kernels/device/stream.h"
#include "kernels/primitives/host_slots.h"

namespace lockstep::gpu {

/// Used by the replica's thread. Kernels of one context run one after another, so that all share
/// the scratch memory and the counters.
struct Context {
  static constexpr int kCounters = 4096;

  Stream stream = nullptr;
  int multiprocessors = 1;
  /// Whether a kernel may start while the one before it ends: sm_90 and later.
  bool dependent_launches = false;
  /// Set by whoever gives the stream a wait or a copy: of an early start behind something that is
  /// no kernel CUDA says nothing.
  mutable bool behind_no_kernel = false;
  /// [kCounters] in device memory, all zero between kernels: a kernel that counts its blocks counts
  /// with increment_acq_rel, whose limit wraps the counter back to zero.
  unsigned* counters = nullptr;
  /// Device memory of at least this many bytes, aligned to 256, unset; valid until the next call.
  /// Grows in the first step.
  std::function<void*(std::size_t bytes)> scratch;
  /// The same of other memory: for sums that wait while kernels run which need scratch memory.
  std::function<void*(std::size_t bytes)> sums;
  /// BackendOptions::sums_by_image.
  bool sums_by_image = false;
  /// Null where all peers read this device's memory.
  std::shared_ptr<HostSlots> host_slots;
  /// Makes the replica's device the thread's current one.
  std::function<void()> enter = [] {};

  /// Whether the kernel that is launched next may start early. Asked once for each.
  bool starts_early() const {
    return dependent_launches && !std::exchange(behind_no_kernel, false);
  }

  /// What every operation begins with.
  const Context& entered() const {
    enter();
    return *this;
  }
};

}  // namespace lockstep::gpu
