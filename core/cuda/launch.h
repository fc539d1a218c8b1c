// launch() starts a kernel on the calling thread's current device and stream; every kernel of the
// library but those of CUB starts here. The header is for .cu files. tests/emulator, which runs
// kernels on the CPU, replaces the two small templates in the middle.
#pragma once

#include "check.h"

#include <tuple>
#include <utility>

namespace tutti::cuda {

struct Grid {
  dim3 blocks = 1;
  dim3 threads = 256;            ///< the threads of one block
  std::size_t shared_bytes = 0;  ///< dynamic shared memory of a block; at most 48 KiB
};

/// Enqueues a kernel by its address; does nothing for a grid without blocks. Throws a DeviceError
/// that names `op` and the grid if the launch fails.
void enqueue(const char* op, const void* kernel, const Grid& grid, void** arguments);

}  // namespace tutti::cuda

#ifdef TUTTI_CUDA_EMULATOR
#include <emulator_launch.h>
#else

namespace tutti::cuda {

template <class... Parameters>
const void* address_of(void (*kernel)(Parameters...)) {
  return reinterpret_cast<const void*>(kernel);
}

#ifdef __CUDACC__
/// Returns the dynamic shared memory of the block, aligned to 16 bytes.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
}
#endif

}  // namespace tutti::cuda

#endif

namespace tutti::cuda {

/// Enqueues kernel(arguments...); each argument is converted to the type of its parameter.
template <class... Parameters, class... Arguments>
void launch(const char* op, void (*kernel)(Parameters...), const Grid& grid,
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                "launch: expected as many arguments as the kernel has parameters");
  std::tuple<Parameters...> values(static_cast<Parameters>(std::forward<Arguments>(arguments))...);
  std::apply(
      [&](auto&... value) {
        void* addresses[] = {const_cast<void*>(static_cast<const volatile void*>(&value))...,
                             nullptr};
        enqueue(op, address_of(kernel), grid, addresses);
      },
      values);
}

}  // namespace tutti::cuda
