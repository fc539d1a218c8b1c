// Groups whose CUDA tensors NCCL carries, for tests.
#pragma once

#include <tutti/distributed/backends/local/local.h>
#include <tutti/distributed/launch/devices.h>
#include <tutti/distributed/process_group.h>

#include <functional>

namespace tutti::test {

/// Calls fn with a group of one rank that issues its collectives nevertheless.
inline void run_one_rank_of_nccl(const std::function<void(const ProcessGroup&)>& fn) {
  auto ranks = distributed::local::make_world({.communicates_alone = true});
  const auto world = ranks[0]->world();
  distributed::set_devices_of_threads(*world, 1, 0, true);
  fn(ProcessGroup(std::move(ranks[0])));
  world->wait_for_devices(std::chrono::seconds(60));
  world->end_lanes(std::chrono::seconds(60));
  world->watcher().stop();
}

}  // namespace tutti::test
