#pragma once
// Where a replica runs. `cpu:k` is the k-th virtual device of the host: a thread with its own
// replica and memory. `cuda:k` is GPU k; several replicas may share it, and are numbered by `slot`.

#include <string>
#include <string_view>
#include <vector>

/// Marks functions that run on the host and, compiled by nvcc, in kernels.
#if defined(__CUDACC__)
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_DEVICE
#endif

namespace lockstep {

enum class DeviceKind { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;  // GPU number, or number of the virtual device
  int slot = 0;     // which of the replicas that share the GPU

  friend bool operator==(const Device&, const Device&) = default;
};

/// "cpu:2", "cuda:0", "cuda:0#1" (second replica on GPU 0).
std::string to_string(const Device& device);

/// Parses a DEVICES argument into one device per rank: "cpu:4" (four virtual devices),
/// "cuda:0,1,3", "cuda:0x4" (four replicas on GPU 0), "cuda:all" (`cuda_device_count` GPUs). Throws
/// ConfigError naming the accepted forms, for an unknown form, a count below 1 or a GPU listed
/// twice; Error for a GPU that is not there.
std::vector<Device> parse_devices(std::string_view text, int cuda_device_count);

}  // namespace lockstep
