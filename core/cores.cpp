// The cores that parallel.h counts and describes. It starts no threads.
#include "control_groups.h"
#include "parallel.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>

namespace tutti {
namespace {

int cores_of_affinity() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

int available_cores() { return std::min(cores_of_affinity(), core_quota()); }

std::string detail::describe_threads(int threads, int cores, int quota) {
  return fmt::format("{} thread{}", threads, threads > 1 ? "s" : "") +
         (quota < cores ? fmt::format(" ({} cores, quota of {})", cores, quota) : "");
}

std::string describe_threads() {
  return detail::describe_threads(num_threads(), cores_of_affinity(), core_quota());
}

}  // namespace tutti
