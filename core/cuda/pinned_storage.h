// Page-locked host memory as the Storage of a CPU tensor: copies from it to a device need no
// staging. This header needs none of CUDA's.
#pragma once

#include "../memory.h"

namespace tutti::cuda {

class Stream;

/// Returns uninitialised page-locked memory of the CPU. Copies from it to a device are asynchronous
/// and read the memory itself: its content must not change before the device has passed the copy.
/// Released memory is reused when the device has finished with it. Throws a DeviceError that says
/// why where there is no CUDA.
std::shared_ptr<Storage> pinned_storage(std::size_t bytes);

/// Starts a copy to the device of `stream` if `from` lies in a pinned storage, else returns false.
bool copy_from_pinned(void* to, const void* from, std::size_t bytes, const Stream& stream);

}  // namespace tutti::cuda
