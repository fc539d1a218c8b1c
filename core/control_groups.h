// What the control groups of a container or a batch job leave this process: memory and processor
// time. It does not say how much of them is free: that changes. `memberships` lists the groups of
// the process, and `mount` is the folder under which the system shows them, version 2 or 1
// (`man 7 cgroups`).
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

/// Returns the bytes of the machine's memory, or the smallest limit of the groups if that is less.
std::uint64_t memory_limit(const std::string& memberships = "/proc/self/cgroup",
                           const std::string& mount = "/sys/fs/cgroup");

/// Returns how many cores' time the smallest quota of the groups is, rounded down but at least 1;
/// INT_MAX where there is no quota.
int core_quota(const std::string& memberships = "/proc/self/cgroup",
               const std::string& mount = "/sys/fs/cgroup");

/// Returns the first number of OMP_NUM_THREADS, which may have others for nested loops, or
/// available_cores().
int default_threads_of_main_thread();

}  // namespace tutti
