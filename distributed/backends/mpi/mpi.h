// The MPI backend as the rest of the library sees it: ranks are processes that an MPI launcher
// started. It is compiled from unavailable.cpp where CMake found no MPI.
#pragma once

#include "../../backend.h"

#include <algorithm>

namespace tutti::distributed::mpi {

/// Returns an empty string where this library was built with MPI, else what to install.
std::string why_unavailable();

/// Makes the world of this job; every process of the job calls it. `launch` has the rank and size
/// that the launcher's variables say, and the timeout. Returns null where this process is alone.
/// Throws a DistributedError where MPI is not built in or sees fewer processes, and a TimeoutError
/// where not all of them come.
std::shared_ptr<Backend> make_world(const GroupInfo& launch);

/// Returns whether MPI has been initialised, by the application or by an earlier world. Then MPI
/// decides what the world is.
bool is_initialized();
/// Returns whether threads other than the caller's may call MPI.
bool allows_threads();

/// Data of up to this many bytes for each of n - 1 peers travels in one message with the
/// fingerprint; larger data is reduced in parts by the communication thread. It is 64 KiB for up to
/// 8 ranks (SyncBatchNorm of 2,048 channels sends 33 kB), then 512 KiB / n, but at least 8 KiB.
/// From 4 ranks on this is at or above the size from which the other way is quicker
/// (benchmarks/results/scaling.md).
constexpr std::size_t inline_limit(int ranks) {
  return std::clamp<std::size_t>((std::size_t{512} << 10) / static_cast<std::size_t>(ranks),
                                 8 << 10, 64 << 10);
}

/// An owner reduces pieces of up to this many bytes. On one host the pieces that wait for their
/// reduction stay in the cache; between hosts a few large messages are quicker than many small
/// ones. Each rank of a host has three pieces at a time from each of them: together at most 1 GiB.
constexpr std::size_t piece_limit(std::size_t ranks_on_host, bool is_one_host) {
  return std::clamp<std::size_t>((std::size_t{1} << 30) / (3 * ranks_on_host * ranks_on_host),
                                 4 << 10, (is_one_host ? 1 : 4) << 20);
}

}  // namespace tutti::distributed::mpi
