#pragma once
// The name of a CUDA stream, for headers that are read without the CUDA Toolkit too.

struct CUstream_st;

namespace lockstep::gpu {

/// cudaStream_t.
using Stream = CUstream_st*;

}  // namespace lockstep::gpu
