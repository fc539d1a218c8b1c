// The CUDA runtime as the rest of the library sees it: devices, memory, copies, waits. A build with
// CUDA compiles the real sources. A build without it compiles unavailable.cpp, whose functions
// throw a DeviceError that says how to build CUDA in. This header, stream.h, graph.h and settings.h
// need no header of CUDA; check.h and launch.h do.
#pragma once

#include "../memory.h"

#include <string>

namespace tutti::cuda {

/// Returns how many CUDA devices can be used: 0 without CUDA, without a driver or without a GPU.
int device_count();
/// Returns why device_count() is 0 ("built without CUDA", "no driver", ...), and an empty text if
/// there is a device.
std::string why_unavailable();

/// Properties are the facts about a device that launches depend on.
struct Properties {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
};
/// Returns the properties of a device.
const Properties& properties(int device);

/// Returns the allocator of a device, which uses cudaMallocAsync. A block belongs to the stream
/// that was current when it was allocated. Code that uses the block on another stream must order
/// the two streams by events before the block is released.
Allocator& allocator(int device);

/// Copies bytes on the current stream of the device. A copy to the host is complete on return and
/// counts as one wait. A copy from the host goes through pinned memory, so the source may be reused
/// at once, unless it is pinned itself (pinned_memory.h).
void copy_bytes(void* to, Device to_device, const void* from, Device from_device,
                std::size_t bytes);
/// Sets bytes to zero on the current stream of the device.
void zero_bytes(void* data, int device, std::size_t bytes);

/// Returns how often the library has made a thread wait for a device so far. A training step adds
/// nothing to it.
std::int64_t synchronizations();
/// Waits for all work of the device, and counts the wait. Benchmarks call it before they read a
/// clock.
void synchronize(int device);

}  // namespace tutti::cuda
