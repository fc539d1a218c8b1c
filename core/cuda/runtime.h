// The CUDA runtime as the rest of core sees it: devices, memory, moving bytes. Compiled from the
// real sources where the library is built with CUDA, else from unavailable.cpp, which throws a
// DeviceError that says how to build it in. Needs no header of CUDA's, as stream.h and graph.h;
// check.h, launch.h and pinned.h are for a build with CUDA only.
#pragma once

#include "../memory.h"

#include <string>

namespace tutti::cuda {

/// How many CUDA devices can be used; 0 without CUDA, without a driver or without a GPU.
int device_count();
/// Why device_count() is 0: "built without CUDA", "no driver", ... Empty where there is a device.
std::string why_unavailable();

/// What launch decisions need to know of a device.
struct Properties {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  int threads_per_multiprocessor = 0;
  std::size_t shared_bytes_per_multiprocessor = 0;
  std::size_t shared_bytes_per_block = 0;  ///< the most a kernel can ask for
  std::size_t l2_bytes = 0;
  std::size_t memory_bytes = 0;
};
const Properties& properties(int device);

/// Stream-ordered memory of cudaMallocAsync: a block belongs to the stream that was current when it
/// was allocated. Whoever uses it on another stream orders the two with events before it is
/// released.
Allocator& allocator(int device);

/// On the current stream of the device. To the host: complete on return, one counted
/// synchronisation. From the host: staged in pinned memory, so that the source may be reused at
/// once.
void copy_bytes(void* to, Device to_device, const void* from, Device from_device,
                std::size_t bytes);
void zero_bytes(void* data, int device, std::size_t bytes);

/// How often the library made any thread wait for a device, ever. A training step adds nothing to
/// it.
std::int64_t synchronizations();
/// Waits for everything on the device (counted): for benchmarks and before reading clocks.
void synchronize(int device);

}  // namespace tutti::cuda
