#pragma once
// Devices that tests compute on.

#include <memory>
#include <vector>

#include "lockstep/backend/backend.h"

namespace lockstep::test {

/// So many virtual devices of the CPU.
inline std::vector<Device> cpus(int count) {
  std::vector<Device> devices;
  for (int k = 0; k < count; ++k) devices.push_back({DeviceKind::kCpu, k, 0});
  return devices;
}

/// A backend of the CPU with so many threads.
inline std::unique_ptr<Backend> cpu(int threads) { return make_backend(Device{}, threads); }

}  // namespace lockstep::test
