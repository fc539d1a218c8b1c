// Which device a rank computes on, and with how many threads.
#include "run_folder.h"
#include "trainer.h"

#include <tutti/core/cuda/runtime.h>
#include <tutti/core/parallel.h>
#include <tutti/distributed/broadcast_text.h>

#include <sched.h>
#include <algorithm>
#include <functional>
#include <string_view>

namespace tutti::examples {

namespace {

// Identifies the cores that this rank may run on: the host's name and the affinity mask. Ranks with
// the same identity compete for cores; mpirun may or may not have bound each rank to its own.
std::int64_t hash_of_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  std::string identity = host_name();
  identity.append(reinterpret_cast<const char*>(&cores), sizeof(cores));
  return static_cast<std::int64_t>(std::hash<std::string_view>{}(identity));
}

}  // namespace

Device device_of_rank(const TrainOptions& options, int local_rank) {
  if (options.device.is_cpu()) return options.device;
  const int count = cuda::device_count(), index = options.device.index() + local_rank;
  return Device::cuda(index < count || count == 0 ? index : index % count);
}

int threads_of_rank(const ProcessGroup& group) {
  const std::int64_t own = hash_of_cores();
  const auto all = distributed::all_gather_numbers(group, {own}, {.name = "cores"});
  const auto sharing = static_cast<int>(std::ranges::count(all, own));
  return std::max(1, available_cores() / sharing);
}

}  // namespace tutti::examples
