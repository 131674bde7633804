// The CUDA backend itself on the fake runtime and the fake cuDNN, for the bodies of tests/backend.

#include <cstdlib>

#include "cuda/fake_runtime.h"
#include "kernels/cuda_backend.h"
#include "support/backends.h"

namespace lockstep::test {

std::vector<NamedBackend> available_backends() {
  fake_runtime::use({.devices = 1});
  setenv("LOCKSTEP_AUTOTUNE", "", 0);  // not the user's file
  std::vector<NamedBackend> backends;
  backends.push_back({"cuda without a GPU",
                      std::make_unique<gpu::CudaBackend>(Device{DeviceKind::kCuda, 0, 0}),
                      kGpuTypes});
  return backends;
}

}  // namespace lockstep::test
