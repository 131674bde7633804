#pragma once
// Where a build with CUDA comes in: backend.h's functions for GPUs, and probe.h's, call these.

#include <memory>
#include <string>
#include <vector>

#include "backend/probe.h"
#include "lockstep/backend/backend.h"

namespace lockstep {

/// What a build with CUDA adds.
struct CudaBackends {
  int (*device_count)() = nullptr;
  std::unique_ptr<Backend> (*make)(const Device& device, const BackendOptions& options) = nullptr;
  std::vector<Diagnostic> (*probe)() = nullptr;
  /// Why no device answers, and what to do; empty where there is none.
  std::string (*why_no_device)() = nullptr;
};
/// Called by register_cuda() (lockstep/cuda.h).
void provide_cuda_backends(const CudaBackends& backends);

}  // namespace lockstep
