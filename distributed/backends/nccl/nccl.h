// NCCL as the rest of the library sees it: the lane of a group's CUDA tensors, for ranks that have
// a GPU each. It is compiled from unavailable.cpp where CMake found no CUDA or NCCL.
#pragma once

#include "../../world.h"

namespace tutti::distributed::nccl {

/// Returns whether the library was built with NCCL, the same on all ranks of one program.
bool is_built_in();
/// Returns an empty string where this process can use NCCL; else "built without NCCL", "no CUDA
/// device: ..." or what why_not_loaded() says.
std::string why_unavailable();
/// Loads NCCL's library. Returns an empty string, or else which files were tried and what to do.
std::string why_not_loaded();

/// Returns a number of a GPU that is the same in every process that sees it, and of no other GPU.
std::uint64_t gpu_number(int device);

/// Sets what NCCL reads from the environment when it is first called, unless the user has set it.
/// Not to be called beside threads that read the environment: that may end the process.
void set_environment();

/// Makes the lane of this rank in the group of `info`, on its device.
std::shared_ptr<Lane> make_lane(std::shared_ptr<World> world, std::shared_ptr<const GroupInfo> info,
                                int device);

}  // namespace tutti::distributed::nccl
