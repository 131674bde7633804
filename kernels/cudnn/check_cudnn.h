#pragma once
// Every call of cuDNN goes through check_cudnn, as every call of the runtime through check_cuda.

#include <cudnn.h>

#include "kernels/device/check_cuda.h"

namespace lockstep::gpu {

/// cuDNN's words for `status`, with what it says of this thread's last failure.
inline std::string describe_cudnn(cudnnStatus_t status) {
  char details[512] = "";
  cudnnGetLastErrorString(details, sizeof details);
  std::string text = cudnnGetErrorString(status);
  if (details[0] != '\0') text += concat(": ", details);
  return text;
}

/// Throws Error with `what` unless `status` is CUDNN_STATUS_SUCCESS.
inline void check_cudnn(cudnnStatus_t status, const char* what,
                        const std::source_location& where = std::source_location::current()) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error(concat("cuDNN: ", what, " failed: ", describe_cudnn(status), describe_place(where)));
}

}  // namespace lockstep::gpu
