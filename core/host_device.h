// TUTTI_HOST_DEVICE marks an inline function that both the host and CUDA kernels call, so that a
// formula is written once for both. Outside nvcc it expands to nothing.
#pragma once

#ifdef __CUDACC__
#define TUTTI_HOST_DEVICE __host__ __device__
#else
#define TUTTI_HOST_DEVICE
#endif
