// Which world this process belongs to: the backend that its launch asks for, and world().
#include "launch.h"
#include "mpi/mpi.h"
#include "nccl/nccl.h"
#include "rendezvous/store.h"
#include "world.h"

namespace tutti::distributed {
namespace {

ProcessGroup& process_world() {
  static ProcessGroup group;
  return group;
}
thread_local const ProcessGroup* thread_world = nullptr;

std::string choose_backend(const WorldOptions& options, const Launch& launch) {
  const bool mpi_finds_us = launch.by_mpi || mpi::is_initialized();
  if (options.backend.empty() && mpi_finds_us) return "mpi";
  if (options.backend.empty() || options.backend == "nccl") {
    const std::string why = nccl::why_unavailable();
    if (why.empty()) return "nccl";
    if (options.backend == "nccl") fail<DistributedError>("from_environment: the nccl backend cannot be used here: {}", why);
    fail<DistributedError>("from_environment: {} ask for {} processes without an MPI launcher, which only the nccl backend "
                           "can do, and that is not there: {}. For CPU tensors start it as 'mpirun -n {} PROGRAM'",
                           launch.found, launch.size, why, launch.size);
  }
  if (options.backend != "mpi")
    fail<ValueError>("from_environment: unknown backend '{}': expected mpi or nccl", options.backend);
  if (!mpi_finds_us)
    fail<DistributedError>("from_environment: MPI cannot find processes that no MPI launcher started ({}); start them as "
                           "'mpirun -n {} PROGRAM'", launch.found, launch.size);
  return "mpi";
}

std::shared_ptr<Backend> nccl_world(const WorldOptions& options, const Launch& launch) {
  std::shared_ptr<rendezvous::Store> store;
  if (!launch.rendezvous.empty()) {
    store = rendezvous::open(launch.rendezvous, {launch.rank, launch.size, launch.run_id, options.timeout});
  } else if (launch.by_mpi || mpi::is_initialized()) {
    const auto over_mpi = mpi::make_world(options.timeout, launch.size);
    if (!over_mpi) return nullptr;
    store = rendezvous::over(ProcessGroup(over_mpi), options.timeout);
  } else {
    fail<DistributedError>("from_environment: nobody says where the ranks meet; found {}. Set MASTER_ADDR and MASTER_PORT "
                           "(torchrun does), or pass rendezvous = \"HOST:PORT\" or \"file:PATH\"", launch.found);
  }
  return nccl::make_world(store, {.local_rank = launch.local_rank, .device = options.device});
}

}  // namespace

ThreadWorld::ThreadWorld(const ProcessGroup& group) : before_(thread_world) { thread_world = &group; }
ThreadWorld::~ThreadWorld() { thread_world = before_; }

const ProcessGroup& world() {
  return thread_world ? *thread_world : process_world();
}

ProcessGroup ProcessGroup::from_environment(std::chrono::milliseconds timeout) {
  return from_environment(WorldOptions{.timeout = timeout});
}

ProcessGroup ProcessGroup::from_environment(const WorldOptions& options) {
  const Launch launch = find_launch(options);
  // Started alone, MPI is not touched at all: its initialisation takes half a second.
  if (launch.size == 1 && !mpi::is_initialized()) return {};
  const auto backend = choose_backend(options, launch) == "nccl" ? nccl_world(options, launch)
                                                                 : mpi::make_world(options.timeout, launch.size);
  if (backend && options.world_size > 0 &&
      (backend->place().rank != options.rank || backend->place().size != options.world_size))
    fail<ValueError>("from_environment: this is rank {} of {} for MPI, but rank {} and world_size {} were given",
                     backend->place().rank, backend->place().size, options.rank, options.world_size);
  return process_world() = backend ? ProcessGroup(backend) : ProcessGroup();
}

}  // namespace tutti::distributed
