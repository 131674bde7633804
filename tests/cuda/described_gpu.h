#pragma once
// GPUs that need not be there: cuDNN builds plans from the description of a device. So plans are
// tested on a machine without a driver, too.

#include <doctest/doctest.h>

#include <cstddef>
#include <string>

#include "kernels/cudnn/cudnn_graph.h"
#include "lockstep/core/check.h"

namespace lockstep::gpu {

/// A device description in cuDNN's format (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION). `version`:
/// 900 for compute capability 9.0; `shared_bytes`: that a block may ask for; `bytes`: of memory.
inline std::string device_json(const char* name, int version, int multiprocessors, int shared_bytes,
                               std::size_t bytes = std::size_t{80} << 30) {
  return concat(
      R"({"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],)",
      R"("regsPerBlock": 65536, "multiProcessorCount": )", multiprocessors, R"(, "warpSize": 32,)",
      R"("maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": )", shared_bytes,
      R"(, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,)",
      R"("maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,)",
      R"("supportCoopLaunch": 1, "totalGlobalMem": )", bytes, R"(, "smClockRateKHz": 1410000,)",
      R"("memClockRateKHz": 1593000, "l2CacheSize": 41943040, "cudaDeviceId": 0, "deviceVer": )",
      version, R"(, "driverVer": 13000, "deviceName": ")", name, R"("})");
}

/// Null when this cuDNN knows no descriptions of devices.
inline CudnnDescriptor device_properties(const std::string& json) {
  try {
    CudnnDescriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    properties.set_all<char>(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, json);
    properties.finalize("describing a device");
    return properties;
  } catch (const Error& error) {
    MESSAGE("SKIPPED: this cuDNN does not plan for absent devices: " << error.what());
    return {};
  }
}

}  // namespace lockstep::gpu
