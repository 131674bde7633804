#pragma once
// Every backend that this build and machine offer, so that one body of tests serves all of them.

#include <memory>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"

namespace lockstep::test {

struct NamedBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};

/// The CPU with one thread and with three (an uneven split), and the first GPU if one answers.
inline std::vector<NamedBackend> available_backends() {
  std::vector<NamedBackend> backends;
  backends.push_back({"cpu, 1 thread", make_backend({DeviceKind::kCpu, 0, 0}, 1)});
  backends.push_back({"cpu, 3 threads", make_backend({DeviceKind::kCpu, 1, 0}, 3)});
  if (cuda_device_count() > 0) {
    backends.push_back({"cuda", make_backend({DeviceKind::kCuda, 0, 0}, 1)});
  }
  return backends;
}

}  // namespace lockstep::test
