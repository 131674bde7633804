#include <cuda_runtime.h>
#include <cudnn.h>

#include <numeric>

#include "kernels/cuda_backend.h"
#include "kernels/device/device.h"
#include "lockstep/core/check.h"

namespace lockstep::gpu {
namespace {

// Asked without libcuda: cudaDriverGetVersion answers 0 where there is no driver.
Diagnostic driver() {
  int installed = 0;
  int built_for = 0;
  cudaDriverGetVersion(&installed);
  cudaRuntimeGetVersion(&built_for);
  const std::string wanted = version_text(built_for);
  if (installed == 0) {
    return {true, "CUDA driver", "none here: this machine runs virtual CPU devices",
            concat("for GPUs install NVIDIA's driver for CUDA ", wanted, " or newer")};
  }
  if (installed / 1000 < built_for / 1000) {
    return {
        false, "CUDA driver", concat("for CUDA ", version_text(installed), ", built for ", wanted),
        concat("install NVIDIA's driver for CUDA ", wanted, ", or build with an older Toolkit")};
  }
  return {true, "CUDA driver", concat("for CUDA ", version_text(installed), ", built for ", wanted),
          ""};
}

Diagnostic cudnn() {
  const std::size_t loaded = cudnnGetVersion();
  const std::string text = concat(loaded, ", built for ", CUDNN_VERSION);
  if (loaded / 10000 == CUDNN_VERSION / 10000 && loaded >= CUDNN_VERSION / 100 * 100) {
    return {true, "cuDNN", text, ""};
  }
  return {false, "cuDNN", text, "put a cuDNN at least as new as the build's on LD_LIBRARY_PATH"};
}

Diagnostic device(int ordinal) {
  make_current(ordinal);
  std::size_t free = 0;
  std::size_t total = 0;
  const std::string topic = concat("cuda:", ordinal);
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
    return {false, topic, cudaGetErrorString(cudaGetLastError()),
            "look at nvidia-smi: the device may be in use exclusively, or need a reset"};
  }
  const std::string text =
      concat(to_string(describe_device(ordinal)), ", ", free >> 20U, " MiB free");
  if (free < total / 2) {
    return {false, topic, text, "other programs hold most of its memory: nvidia-smi names them"};
  }
  return {true, topic, text, ""};
}

Diagnostic peers(int count) {
  std::vector<int> ordinals(static_cast<std::size_t>(count));
  std::iota(ordinals.begin(), ordinals.end(), 0);
  const PeerAccess access(ordinals);
  std::string apart;
  for (const int a : ordinals) {
    for (const int b : ordinals) {
      if (a < b && !access.between(a, b)) apart += concat(apart.empty() ? "" : ", ", a, "-", b);
    }
  }
  if (apart.empty()) return {true, "peer access", "between all GPUs", ""};
  return {true, "peer access",
          concat("not between ", apart, ": statistics go through the host there"),
          "GPUs on one PCIe switch or NVLink reach one another; virtualisation may forbid it"};
}

}  // namespace

std::vector<Diagnostic> probe() {
  std::vector<Diagnostic> findings{driver(), cudnn()};
  try {
    const int count = device_count();
    for (int ordinal = 0; ordinal < count; ++ordinal) findings.push_back(device(ordinal));
    if (count > 1) findings.push_back(peers(count));
  } catch (const std::exception& error) {
    findings.push_back({false, "CUDA devices", error.what(), "look at nvidia-smi"});
  }
  return findings;
}

}  // namespace lockstep::gpu
