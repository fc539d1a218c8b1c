// The MPI backend as the rest of the library sees it. Compiled from unavailable.cpp where CMake
// found no MPI.
#pragma once

#include "../../backend.h"

#include <algorithm>

namespace tutti::distributed::mpi {

/// The world of this job, made by a collective call of all its processes; null where this process
/// is alone. `expected_size` is what the launcher's variables said, a negative `local_rank` is
/// counted by MPI. DistributedError with a hint where MPI is not built in or sees fewer processes
/// than expected.
std::shared_ptr<Backend> make_world(std::chrono::milliseconds timeout, int expected_size,
                                    int local_rank = -1);

/// Data up to this many bytes for each of n - 1 peers travels with the fingerprint; more of it is
/// reduced in parts, by the communication thread. 64 KiB for up to 8 ranks (SyncBatchNorm of 2,048
/// channels is 33 kB), then 512 KiB / n, at least 8 KiB: from 4 ranks on at or above where the
/// model of docs/scaling.md says that the other way becomes quicker.
constexpr std::size_t inline_limit(int ranks) {
  return std::clamp<std::size_t>((std::size_t{512} << 10) / static_cast<std::size_t>(ranks),
                                 8 << 10, 64 << 10);
}

/// Whether the application has already initialised MPI itself: then it decides what the world is.
bool is_initialized();

}  // namespace tutti::distributed::mpi
