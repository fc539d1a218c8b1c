// Every call of CUDA's libraries goes through a check: errors name the call and the operation that
// made it.
#pragma once

#include "../error.h"

#include <cuda_runtime_api.h>

namespace tutti::cuda {

/// DeviceError unless `status` is cudaSuccess. `call`: the function of CUDA's; `op`: ours that
/// called it, with shapes where they matter.
inline void check(cudaError_t status, const char* call, const char* op) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky must not be reported again by the next call
  fail<DeviceError>("{}: {} failed: {} ({})", op, call, cudaGetErrorString(status),
                    cudaGetErrorName(status));
}

}  // namespace tutti::cuda
