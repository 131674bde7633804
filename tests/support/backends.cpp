#include "support/backends.h"

namespace lockstep::test {

namespace {

std::vector<NamedBackend> all_backends(const BackendOptions& of_gpu) {
  std::vector<NamedBackend> backends;
  backends.push_back({"cpu, 1 thread", make_backend({DeviceKind::kCpu, 0, 0}, 1), kCpuTypes});
  backends.push_back({"cpu, 3 threads", make_backend({DeviceKind::kCpu, 1, 0}, 3), kCpuTypes});
  if (cuda_device_count() > 0) {
    backends.push_back({"cuda", make_backend({DeviceKind::kCuda, 0, 0}, 1, of_gpu), kGpuTypes});
  }
  return backends;
}

}  // namespace

std::vector<NamedBackend> available_backends() { return all_backends({.tf32 = false}); }

std::vector<NamedBackend> backends_by_image() {
  return all_backends({.tf32 = false, .sums_by_image = true});
}

}  // namespace lockstep::test
