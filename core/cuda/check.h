// check() turns the error of a CUDA call into a DeviceError that names the call and the operation.
// Every call of the CUDA runtime goes through it.
#pragma once

#include "../error.h"

#include <cuda_runtime_api.h>

namespace tutti::cuda {

/// Throws a DeviceError unless `status` is cudaSuccess. `call` names the CUDA function and `op` the
/// operation of the library that called it, with shapes if they matter.
inline void check(cudaError_t status, const char* call, const char* op) {
  if (status == cudaSuccess) return;
  // This clears an error that is not sticky, so that the next call does not report it again.
  cudaGetLastError();
  fail<DeviceError>("{}: {} failed: {} ({})", op, call, cudaGetErrorString(status),
                    cudaGetErrorName(status));
}

}  // namespace tutti::cuda
