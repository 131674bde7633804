#pragma once
// A number of an operation that may change while everything else stays, so that a recorded step can
// be replayed with other numbers.

#include "lockstep/backend/host_device.h"

namespace lockstep {

/// `value`, plus what lies at `memory` (device memory of the backend; null: nothing) when the
/// operation runs.
template <typename T>
struct DeviceScalar {
  // Implicit: operations take plain numbers, too.
  DeviceScalar(T number) : value(number) {}  // NOLINT(google-explicit-constructor)
  DeviceScalar(T number, const T* added) : value(number), memory(added) {}

  /// On the device that owns the memory.
  LOCKSTEP_HOST_DEVICE T get() const { return memory == nullptr ? value : value + *memory; }

  T value;
  const T* memory = nullptr;
};

}  // namespace lockstep
