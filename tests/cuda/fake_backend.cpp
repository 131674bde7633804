// The CUDA backend itself on the fake runtime and the fake cuDNN, for the bodies of tests/backend.

#include <cstdlib>

#include "cuda/fake_runtime.h"
#include "kernels/cuda_backend.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

std::vector<NamedBackend> fake_gpu(const BackendOptions& options) {
  fake_runtime::use({.devices = 1});
  setenv("LOCKSTEP_AUTOTUNE", "", 0);  // not the user's file
  std::vector<NamedBackend> backends;
  const Device device{DeviceKind::kCuda, 0, 0};
  backends.push_back(
      {"cuda without a GPU", std::make_unique<gpu::CudaBackend>(device, options), kGpuTypes});
  return backends;
}

}  // namespace

std::vector<NamedBackend> available_backends() { return fake_gpu({.tf32 = false}); }

std::vector<NamedBackend> backends_by_image() {
  return fake_gpu({.tf32 = false, .sums_by_image = true});
}

}  // namespace lockstep::test
