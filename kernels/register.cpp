// Makes the CUDA backend known to the factories of lockstep/backend and lockstep/sync, which know
// nothing of CUDA: linking this folder's objects is enough.

#include <cstdlib>

#include "kernels/cuda_backend.h"
#include "kernels/device/device.h"
#include "kernels/examine.h"
#include "kernels/transport/gpu_transport.h"

namespace lockstep::gpu {
namespace {

std::unique_ptr<Backend> make_cuda_backend(const Device& device, const BackendOptions& options) {
  return std::make_unique<CudaBackend>(device, options);
}

/// Streams share a few queues to the GPU, and one that is behind another in a queue waits for it:
/// with four replicas there are more streams than the usual eight queues. CUDA reads this when it
/// starts; what the user has set stays.
void ask_for_many_queues() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

struct Registration {
  Registration() {
    ask_for_many_queues();
    provide_cuda_backends({device_count, make_cuda_backend, examine});
    provide_gpu_transport("host", make_gpu_host_transports);
    provide_gpu_transport("event", make_event_transports);
  }
};
const Registration registration;

}  // namespace
}  // namespace lockstep::gpu
