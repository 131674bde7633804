#pragma once
// Every call of NCCL goes through check_nccl, as every call of the runtime through check_cuda.

#include <nccl.h>

#include <string>

#include "kernels/device/check_cuda.h"

namespace lockstep::gpu {

/// Throws Error with `what`, and with `advice` where there is some, unless `result` is ncclSuccess.
inline void check_nccl(ncclResult_t result, const char* what, const std::string& advice = "",
                       const std::source_location& where = std::source_location::current()) {
  if (result == ncclSuccess) return;
  throw Error(concat("NCCL: ", what, " failed: ", ncclGetErrorString(result), ": ",
                     ncclGetLastError(nullptr), advice, describe_place(where)));
}

}  // namespace lockstep::gpu
