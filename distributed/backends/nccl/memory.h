// Memory that NCCL moves best, for what is sent often (gradient buckets): from ncclMemAlloc and
// registered, once, on its group's communicator. Not stream-ordered: it is freed by a later call of
// this device's groups, when the last view is gone and the device has come to the end of its use.
// Not in the watcher: freeing may wait for the device.
#pragma once

#include "../../../core/create.h"
#include "domain.h"

namespace tutti::distributed::nccl {

/// Uninitialised, on the channel's device; as others are where NCCL has no such memory, or while a
/// graph is captured.
Tensor registered_empty(const std::shared_ptr<Channel>& channel, const Shape& shape,
                        TensorOptions options);

/// Frees what was released on a device and is no longer in use.
void free_released(int device);

}  // namespace tutti::distributed::nccl
