#pragma once
// Every call of the CUDA runtime goes through check_cuda, which tells what failed, where and on
// which device. The runtime keeps the last error until it is read: what has been reported here is
// cleared, so that no later call is blamed for it.

#include <cuda_runtime_api.h>

#include <source_location>

#include "lockstep/core/check.h"

namespace lockstep::gpu {

/// " on cuda:1, at kernels/device/device.cpp:12"; without the device when the runtime cannot tell
/// it.
inline std::string describe_place(const std::source_location& where) {
  int device = -1;
  std::string text;
  if (cudaGetDevice(&device) == cudaSuccess) text = concat(" on cuda:", device);
  static_cast<void>(cudaGetLastError());
  return text + concat(", at ", where.file_name(), ":", where.line());
}

/// What to do about an error; empty where its name says all that is known.
inline const char* advice_on(cudaError_t status) {
  switch (status) {
    case cudaErrorNoKernelImageForDevice:
      return "; this build has no code for this GPU: build it with CUDAARCHS=native tools/build on "
             "a machine that has one";
    case cudaErrorSystemNotReady:
      return "; GPUs with NVSwitch need NVIDIA's fabric manager, of the driver's version: start it "
             "(systemctl start nvidia-fabricmanager), and look at its log if it does not stay up";
    default:
      return "";
  }
}

[[noreturn]] inline void throw_cuda_error(cudaError_t status, const char* what,
                                          const std::source_location& where) {
  static_cast<void>(cudaGetLastError());
  throw Error(concat("CUDA: ", what, " failed: ", cudaGetErrorString(status), " (",
                     cudaGetErrorName(status), ")", describe_place(where), advice_on(status)));
}

/// Throws Error with `what` (the call, or what it was for) unless `status` is cudaSuccess.
inline void check_cuda(cudaError_t status, const char* what,
                       const std::source_location& where = std::source_location::current()) {
  if (status != cudaSuccess) throw_cuda_error(status, what, where);
}

}  // namespace lockstep::gpu
