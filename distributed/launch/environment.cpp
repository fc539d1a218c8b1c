// ProcessGroup::from_environment() and world(): how the processes of a launch become one world. The
// launch (launch.h) says which ranks there are, MPI brings them together.
#include "../backends/mpi/mpi.h"
#include "../backends/nccl/nccl.h"
#include "devices.h"
#include "launch.h"

#include <cstdlib>

namespace tutti::distributed {
namespace {

ProcessGroup& process_world() {
  static auto& group = *new ProcessGroup;  // threads may outlive static objects
  return group;
}
thread_local const ProcessGroup* thread_world = nullptr;

// Returns null for one process. MPI is not touched then, because its initialisation takes half a
// second.
std::shared_ptr<Backend> make_world(const WorldOptions& options) {
  GroupInfo launch = find_launch();
  if (launch.size == 1 && !mpi::is_initialized()) return nullptr;
  if (may_use_nccl(options.nccl)) nccl::set_environment();  // before MPI has threads
  launch.timeout = options.timeout;
  auto backend = mpi::make_world(launch);
  if (backend) gather_devices(*backend, options);
  return backend;
}

}  // namespace

ThreadWorld::ThreadWorld(const ProcessGroup& group)
    : world_(thread_world, &group), backend_(Backend::of_thread_, group.implementation().get()) {}

const ProcessGroup& world() { return thread_world ? *thread_world : process_world(); }

ProcessGroup ProcessGroup::from_environment(std::chrono::milliseconds timeout) {
  return from_environment(WorldOptions{.timeout = timeout});
}

ProcessGroup ProcessGroup::from_environment(const WorldOptions& options) {
  check_timeout("from_environment", options.timeout);
  const auto backend = make_world(options);
  // A group of several ranks ends at exit before its transport does.
  [[maybe_unused]] static const int at_exit = std::atexit([] {
    if (process_world().communicates()) process_world() = ProcessGroup();
  });
  return process_world() = backend ? ProcessGroup(backend) : ProcessGroup();
}

}  // namespace tutti::distributed
