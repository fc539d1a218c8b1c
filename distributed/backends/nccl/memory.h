// Memory for tensors that are sent often, such as gradient buckets: allocated by ncclMemAlloc and
// registered once on the communicator of its group. It is not stream-ordered. When the last view of
// it is gone, a later call of the same device's groups frees it, once the device has finished using
// it. The watcher thread does not, because freeing may wait for the device.
#pragma once

#include "../../../core/create.h"
#include "group_registry.h"

namespace tutti::distributed::nccl {

/// Returns an uninitialised tensor on the group's device. It is an ordinary tensor where NCCL has
/// no such memory, and while a graph is captured.
Tensor registered_empty(const std::shared_ptr<RegisteredGroup>& group, const Shape& shape,
                        TensorOptions options);

/// Frees the memory of a device that has been released and is no longer in use.
void free_released(int device);

}  // namespace tutti::distributed::nccl
