#include "backend/cpu/cpu_backend.h"
#include "lockstep/backend/backend.h"

namespace lockstep {

std::unique_ptr<Backend> make_backend(const Device& device, int threads) {
  LOCKSTEP_CHECK(threads >= 1, "a backend needs at least 1 thread, got ", threads);
  if (device.kind == DeviceKind::kCpu) return std::make_unique<CpuBackend>(device, threads);
  throw Error(concat(to_string(device),
                     ": this build of lockstep has no CUDA backend; use -d cpu:N",
                     " (N virtual devices on the CPU), or build with CUDA"));
}

int cuda_device_count() { return 0; }

}  // namespace lockstep
