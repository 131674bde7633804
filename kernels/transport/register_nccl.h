#pragma once
// What a build with NCCL adds (register_cuda).

namespace lockstep::gpu {

/// The transport "nccl".
void register_nccl_transport();
/// The all-reduce between GPUs.
void register_nccl_all_reduce();

}  // namespace lockstep::gpu
