// Makes the CUDA backend known to the factories of lockstep/backend and lockstep/sync, which know
// nothing of CUDA.

#include <cstdlib>

#include "backend/cuda_backends.h"
#include "core/profiler.h"
#include "kernels/cuda_backend.h"
#include "kernels/device/device.h"
#include "kernels/device/nvtx_profiler.h"
#include "kernels/transport/gpu_transport.h"
#include "kernels/transport/register_nccl.h"
#include "lockstep/cuda.h"

namespace lockstep::gpu {
namespace {

std::unique_ptr<Backend> make_cuda_backend(const Device& device, const BackendOptions& options) {
  return std::make_unique<CudaBackend>(device, options);
}

/// Streams share a few queues to the GPU, and one that is behind another in a queue waits for it:
/// with four replicas there are more streams than the usual eight queues. CUDA reads this when it
/// starts; what the user has set stays.
void ask_for_many_queues() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

}  // namespace
}  // namespace lockstep::gpu

namespace lockstep {

void register_cuda() {
  gpu::ask_for_many_queues();
  set_profiler(&gpu::nvtx_profiler());
  provide_cuda_backends(
      {gpu::device_count, gpu::make_cuda_backend, gpu::probe, gpu::why_no_device});
  provide_gpu_transport(TransportKind::kHost, gpu::make_gpu_host_transports);
  provide_gpu_transport(TransportKind::kEvent, gpu::make_event_transports);
#if defined(LOCKSTEP_NCCL)
  gpu::register_nccl_transport();
  gpu::register_nccl_all_reduce();
#endif
}

}  // namespace lockstep
