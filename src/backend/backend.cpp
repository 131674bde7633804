#include "lockstep/backend/backend.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>

#include "backend/cpu/cpu_backend.h"

namespace lockstep {
namespace {

CudaBackends& cuda_backends() {
  static CudaBackends backends;  // filled by register_cuda()
  return backends;
}

}  // namespace

// omp_get_num_procs() goes by the process's affinity, which mpirun, taskset and srun set
// (sched_getaffinity), as it was before OMP_PROC_BIND bound this thread to a single core.
int host_threads() {
  const int cores = omp_get_num_procs();
  const char* limit = std::getenv("OMP_NUM_THREADS");
  return limit != nullptr && std::atoi(limit) > 0 ? std::min(cores, std::atoi(limit)) : cores;
}

std::unique_ptr<Backend> make_backend(const Device& device, int threads,
                                      const BackendOptions& options) {
  LOCKSTEP_CHECK(threads >= 1, "a backend needs at least 1 thread, got ", threads);
  if (device.kind == DeviceKind::kCpu) return std::make_unique<CpuBackend>(device, threads);
  if (cuda_backends().make != nullptr) return cuda_backends().make(device, options);
  throw Error(concat(to_string(device),
                     ": there is no CUDA backend; use cpu:N (N virtual devices on the CPU), or a ",
                     "build with CUDA in which the program calls register_cuda()"));
}

int cuda_device_count() {
  return cuda_backends().device_count == nullptr ? 0 : cuda_backends().device_count();
}

std::vector<Finding> examine_cuda() {
  if (cuda_backends().examine != nullptr) return cuda_backends().examine();
  return {{true, "CUDA", "this build is for the CPU only",
           "to use GPUs: install the CUDA Toolkit, cuDNN and NCCL, and build again"}};
}

void provide_cuda_backends(const CudaBackends& backends) { cuda_backends() = backends; }

std::vector<Device> parse_devices(std::string_view text) {
  return parse_devices(text, cuda_device_count());
}

}  // namespace lockstep
