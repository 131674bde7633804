// Makes the CUDA backend known to the factories of lockstep/backend and lockstep/sync, which know
// nothing of CUDA: linking this folder's objects is enough.

#include "kernels/cuda_backend.h"
#include "kernels/device/device.h"
#include "kernels/examine.h"
#include "kernels/transport/gpu_communicator.h"

namespace lockstep::gpu {
namespace {

std::unique_ptr<Backend> make_cuda_backend(const Device& device, const BackendOptions& options) {
  return std::make_unique<CudaBackend>(device, options);
}

struct Registration {
  Registration() {
    provide_cuda_backends({device_count, make_cuda_backend, examine});
    provide_gpu_transport("host", make_gpu_host_communicators);
    provide_gpu_transport("event", make_event_communicators);
  }
};
const Registration registration;

}  // namespace
}  // namespace lockstep::gpu
