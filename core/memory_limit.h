// memory_limit() says how much memory this process can have at most. It does not say how much is
// free: that changes, and other processes may return what they hold.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

/// Returns the bytes of the machine's memory, or the smallest limit of the control groups that the
/// process is in (a container's, a batch job's) if that is less. `memberships` lists these groups,
/// and `mount` is the folder under which the system shows them, version 2 or 1 (`man 7 cgroups`).
std::uint64_t memory_limit(const std::string& memberships = "/proc/self/cgroup",
                           const std::string& mount = "/sys/fs/cgroup");

}  // namespace tutti
