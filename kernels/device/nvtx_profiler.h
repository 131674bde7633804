#pragma once
// Ranges and capture for NVIDIA's profilers, Nsight Systems and Nsight Compute.

#include "core/profiler.h"

namespace lockstep::gpu {

/// Ranges of NVTX's domain "lockstep", and cudaProfilerStart and cudaProfilerStop, which
/// `nsys profile --capture-range=cudaProfilerApi` waits for. Costs nothing where no tool listens.
/// The one of the process; it lives as long.
Profiler& nvtx_profiler();

}  // namespace lockstep::gpu
