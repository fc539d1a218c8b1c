#include "trainer.h"

#include <tutti/core/create.h>
#include <tutti/core/parallel.h>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string_view>

namespace tutti::examples {

int fair_threads(const ProcessGroup& group) {
  // Ranks compete where host and affinity mask are the same (mpirun may or may not have bound each
  // to cores of its own).
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  std::string key(host.data());
  key.append(reinterpret_cast<const char*>(&cores), sizeof(cores));
  const Tensor mine = empty({1}, {.dtype = int64}),
               all = empty({group.size(), 1}, {.dtype = int64});
  const auto hash = static_cast<std::int64_t>(std::hash<std::string_view>{}(key));
  *mine.data<std::int64_t>() = hash;
  group.all_gather(mine, all, {.name = "cores"}).wait();
  const auto* first = all.data<std::int64_t>();
  const auto sharing = static_cast<int>(std::count(first, first + group.size(), hash));
  return std::max(1, available_cores() / sharing);
}

}  // namespace tutti::examples
