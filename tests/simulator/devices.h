// Lanes over devices that are simulated, as unfriendly as NCCL: the n-th launches of a group's
// ranks are one collective, which ends a while after the last of them, and never where they differ
// or a rank has aborted its lane. Faults of Fault::at_launch happen in their calls.
#pragma once

#include "job.h"

#include <tutti/distributed/process_group.h>

namespace tutti::simulator {

/// Gives the calling rank a device, to which CUDA tensors of all groups go from now on.
void use_device(const ProcessGroup& world);
/// Returns a tensor of the device that shares the memory of `host`.
Tensor on_device(const Tensor& host);
/// Lets the host wait for the device. Throws what wait() throws.
void wait_for_result(distributed::Work work);

}  // namespace tutti::simulator
