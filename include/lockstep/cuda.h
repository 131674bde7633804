#pragma once
// The CUDA backend of a build that has one (in CMake: Lockstep_CUDA).

namespace lockstep {

/// Makes GPUs available: cuda devices, the transports "host", "event" and, with NCCL, "nccl"
/// between them, and all-reduces. Called once, first thing in `main`: before that, and without it,
/// a cuda device is an error that says so. Starts nothing on a GPU; of use on a machine without
/// one, too. Sets CUDA_DEVICE_MAX_CONNECTIONS where the environment does not.
void register_cuda();

}  // namespace lockstep
