// The table of the backends: their names, what they can do, whether this process can use them, and
// how they make a world. It is the only place that knows all of them. Beside it, launching
// (launch/environment.cpp) knows MPI, which may bring processes together for another backend.
// Everything else asks a group's capabilities().
#pragma once

#include "backend.h"

#include <string_view>

namespace tutti::distributed {

/// How the processes of a world find each other; `none` where ranks are always threads.
enum class ProcessLaunch { none, mpi_launcher, rendezvous };

/// A backend, whether this library was built with it or not.
struct BackendEntry {
  const char* name;           ///< As in GroupInfo::backend, WorldOptions and RunOptions.
  Capabilities capabilities;  ///< Those of its groups.
  /// Returns an empty string where this process can use the backend, else the reason.
  std::string (*why_unavailable)();
  ProcessLaunch launch;  ///< How its processes find each other.
  /// Makes the world of this process. Every process of the world calls it. Returns null where this
  /// process is alone. The pointer is null where `launch` is none.
  std::shared_ptr<Backend> (*make_world)(const ProcessWorldOptions& options);
  /// Makes a world of threads. The pointer is null for a backend whose ranks are always processes.
  RanksAsThreads (*make_thread_ranks)(const ThreadWorldOptions& options);
};

/// Returns all backends, whether this library was built with them or not.
std::span<const BackendEntry> backends();

/// Returns null where no backend has this name.
const BackendEntry* find_backend(std::string_view name);

}  // namespace tutti::distributed
