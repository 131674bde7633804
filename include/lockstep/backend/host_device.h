#pragma once
// Marks functions that run on the host and, compiled by nvcc, in kernels.

#if defined(__CUDACC__)
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_DEVICE
#endif
