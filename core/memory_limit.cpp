#include "memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace tutti {
namespace {

namespace fs = std::filesystem;

// Returns the smallest limit in the files of this name, from the folder `path` below `mount` up to
// `mount` itself: a group cannot have more memory than the group that contains it. In a container,
// `path` may be a name outside of it, and `mount` the container's own group.
std::uint64_t smallest_limit(const fs::path& mount, const fs::path& path, const char* file) {
  std::uint64_t smallest = UINT64_MAX;
  for (fs::path below = path.relative_path();; below = below.parent_path()) {
    std::uint64_t limit = 0;
    if (std::ifstream(mount / below / file) >> limit)  // not for "max", which is no number
      smallest = std::min(smallest, limit);
    if (below.empty()) return smallest;
  }
}

// Returns whether a list such as "cpu,memory" names the controller of memory.
bool has_memory(const std::string& controllers) {
  return ("," + controllers + ",").find(",memory,") != std::string::npos;
}

}  // namespace

std::uint64_t memory_limit(const std::string& memberships, const std::string& mount) {
  std::uint64_t smallest = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                           static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  // Each line is number:controllers:path; version 2 has the number 0 and no controllers.
  std::ifstream lines(memberships);
  for (std::string number, controllers, path; std::getline(lines, number, ':') &&
                                              std::getline(lines, controllers, ':') &&
                                              std::getline(lines, path);) {
    if (controllers.empty())
      smallest = std::min(smallest, smallest_limit(mount, path, "memory.max"));
    else if (has_memory(controllers))
      smallest = std::min(
          smallest, smallest_limit(fs::path(mount) / "memory", path, "memory.limit_in_bytes"));
  }
  return smallest;
}

}  // namespace tutti
