// Which device each rank of a world has for its CUDA tensors. NCCL carries them where every rank
// has a GPU of its own; all ranks decide that equally, when the world is made.
#pragma once

#include "../backend.h"
#include "../process_group.h"

namespace tutti::distributed {

/// Returns whether CUDA tensors may travel by NCCL: the option and TUTTI_NCCL allow it.
bool may_use_nccl(bool option);

/// Sets the devices of a world whose ranks are threads: rank r has `first_device` + r. Neither CUDA
/// nor NCCL is loaded where NCCL may not be used.
void set_devices_of_threads(World& world, int ranks, int first_device, bool use_nccl);

/// Sets the devices of a world whose ranks are processes, which tell each other their GPUs over
/// its group. Every rank calls it. Throws a DistributedError on every rank where a rank wants a
/// device that is not there.
void gather_devices(Backend& world_group, const WorldOptions& options);

}  // namespace tutti::distributed
