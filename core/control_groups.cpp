// The limits of control groups, and the counts of cores in parallel.h, which follow from them.
#include "control_groups.h"

#include "parallel.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace tutti {
namespace {

namespace fs = std::filesystem;

// Calls visit(folder, is_version_2) for the groups that limit what `controller` controls, from that
// of the process up to `mount`: a group cannot have more than the group that contains it. In a
// container, the path of a group may be a name outside of it, and `mount` the container's own.
template <class Visit>
void for_each_group(const std::string& memberships, const std::string& mount,
                    const std::string& controller, const Visit& visit) {
  // Each line is number:controllers:path; version 2 has the number 0 and no controllers.
  std::ifstream lines(memberships);
  for (std::string number, controllers, path; std::getline(lines, number, ':') &&
                                              std::getline(lines, controllers, ':') &&
                                              std::getline(lines, path);) {
    const bool is_version_2 = controllers.empty();
    if (!is_version_2 &&
        ("," + controllers + ",").find("," + controller + ",") == std::string::npos)
      continue;
    const fs::path root = is_version_2 ? fs::path(mount) : fs::path(mount) / controller;
    for (fs::path below = fs::path(path).relative_path();; below = below.parent_path()) {
      visit(root / below, is_version_2);
      if (below.empty()) break;
    }
  }
}

int cores_of_affinity() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

std::uint64_t memory_limit(const std::string& memberships, const std::string& mount) {
  std::uint64_t smallest = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                           static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  for_each_group(memberships, mount, "memory", [&](const fs::path& group, bool is_version_2) {
    std::uint64_t limit = 0;
    if (std::ifstream(group / (is_version_2 ? "memory.max" : "memory.limit_in_bytes")) >> limit)
      smallest = std::min(smallest, limit);  // not for "max", which is no number
  });
  return smallest;
}

int core_quota(const std::string& memberships, const std::string& mount) {
  std::int64_t smallest = INT_MAX;
  for_each_group(memberships, mount, "cpu", [&](const fs::path& group, bool is_version_2) {
    std::int64_t quota = 0, period = 0;  // microseconds; "max" and -1 mean that there is no quota
    if (is_version_2) std::ifstream(group / "cpu.max") >> quota >> period;
    else {
      std::ifstream(group / "cpu.cfs_quota_us") >> quota;
      std::ifstream(group / "cpu.cfs_period_us") >> period;
    }
    if (quota > 0 && period > 0)
      smallest = std::min(smallest, std::max<std::int64_t>(1, quota / period));
  });
  return static_cast<int>(smallest);
}

int available_cores() { return std::min(cores_of_affinity(), core_quota()); }

int default_threads_of_main_thread() {
  const char* const text = std::getenv("OMP_NUM_THREADS");
  const long given = text ? std::strtol(text, nullptr, 10) : 0;
  return given >= 1 ? static_cast<int>(std::min(given, 0xffffL)) : available_cores();
}

std::string detail::describe_threads(int threads, int cores, int quota) {
  return fmt::format("{} thread{}", threads, threads > 1 ? "s" : "") +
         (quota < cores ? fmt::format(" ({} cores, quota of {})", cores, quota) : "");
}

std::string describe_threads() {
  return detail::describe_threads(num_threads(), cores_of_affinity(), core_quota());
}

}  // namespace tutti
