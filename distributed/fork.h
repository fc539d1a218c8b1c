// Tells the process that made an object from the child of a fork that got a copy of it: groups,
// their threads, MPI and CUDA work in the process that made them only.
#pragma once

#include <cstdint>

namespace tutti::distributed {

/// Returns a number that changes in the child of every fork. It costs one load.
std::uint64_t process_generation();

}  // namespace tutti::distributed
