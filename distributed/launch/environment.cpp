// ProcessGroup::from_environment() and world(): how the processes of a launch become one world. The
// launch (launch.h) says which ranks there are; this file chooses the backend and brings the ranks
// together.
#include "../backends/mpi/mpi.h"
#include "../backends/nccl/nccl.h"
#include "launch.h"
#include "rendezvous/store.h"
#include "thread_world.h"

namespace tutti::distributed {
namespace {

ProcessGroup& process_world() {
  static ProcessGroup group;
  return group;
}
thread_local const ProcessGroup* thread_world = nullptr;

// Returns "mpi", "nccl" or, for a single process, "single", in which case MPI is not initialised:
// that would take half a second. A single process that asks for NCCL's collectives gets them.
std::string choose_backend(const WorldOptions& options, const Launch& launch) {
  if (!options.backend.empty() && options.backend != "mpi" && options.backend != "nccl")
    fail<ValueError>("from_environment: unknown backend '{}': expected mpi or nccl",
                     options.backend);
  if (launch.size == 1 && !mpi::is_initialized() && options.backend != "nccl") return "single";
  const bool mpi_finds_us = launch.by_mpi || mpi::is_initialized();
  if (options.backend.empty() && mpi_finds_us) return "mpi";
  if (options.backend.empty() || options.backend == "nccl") {
    const std::string why = nccl::why_unavailable();
    if (why.empty()) return "nccl";
    if (options.backend == "nccl")
      fail<DistributedError>("from_environment: the nccl backend cannot be used here: {}", why);
    fail<DistributedError>(
        "from_environment: {} ask for {} processes without an MPI launcher, which only the nccl "
        "backend can do, and that is not there: {}. For CPU tensors start it as 'mpirun -n {} "
        "PROGRAM'",
        launch.found, launch.size, why, launch.size);
  }
  if (!mpi_finds_us)
    fail<DistributedError>(
        "from_environment: MPI cannot find processes that no MPI launcher started ({}); start them "
        "as 'mpirun -n {} PROGRAM'",
        launch.found, launch.size);
  return "mpi";
}

// Opens the store through which the ranks of an NCCL world find each other.
std::shared_ptr<rendezvous::Store> open_rendezvous(const WorldOptions& options,
                                                   const Launch& launch) {
  const rendezvous::Member alone{.run_id = launch.run_id, .timeout = options.timeout};
  const auto in_memory = [&] {
    return rendezvous::in_memory(std::make_shared<rendezvous::SharedTable>(), alone);
  };
  if (launch.size == 1 && !mpi::is_initialized()) return in_memory();
  if (!launch.rendezvous.empty())
    return rendezvous::open(launch.rendezvous,
                            {launch.rank, launch.size, launch.run_id, options.timeout});
  if (!launch.by_mpi && !mpi::is_initialized())
    fail<DistributedError>(
        "from_environment: no address at which the ranks find each other; found {}. Set "
        "MASTER_ADDR and "
        "MASTER_PORT (torchrun does), or pass rendezvous = \"HOST:PORT\" or \"file:PATH\"",
        launch.found);
  const auto over_mpi = mpi::make_world(options.timeout, launch.size);
  return over_mpi ? rendezvous::over(ProcessGroup(over_mpi), options.timeout) : in_memory();
}

std::shared_ptr<Backend> make_world(const WorldOptions& options, const Launch& launch) {
  const std::string backend = choose_backend(options, launch);
  if (backend == "single") return nullptr;
  if (backend == "mpi") return mpi::make_world(options.timeout, launch.size, options.local_rank);
  return nccl::make_world(open_rendezvous(options, launch),
                          {.local_rank = launch.local_rank, .device = options.device});
}

}  // namespace

ThreadWorld::ThreadWorld(const ProcessGroup& group) : before_(thread_world) {
  thread_world = &group;
}
ThreadWorld::~ThreadWorld() { thread_world = before_; }

const ProcessGroup& world() { return thread_world ? *thread_world : process_world(); }

ProcessGroup ProcessGroup::from_environment(std::chrono::milliseconds timeout) {
  return from_environment(WorldOptions{.timeout = timeout});
}

ProcessGroup ProcessGroup::from_environment(const WorldOptions& options) {
  const Launch launch = find_launch(options);
  const auto backend = make_world(options, launch);
  if (backend && options.world_size > 0 &&
      (backend->place().rank != options.rank || backend->place().size != options.world_size))
    fail<ValueError>(
        "from_environment: this is rank {} of {} for MPI, but rank {} and world_size {} were given",
        backend->place().rank, backend->place().size, options.rank, options.world_size);
  return process_world() = backend ? ProcessGroup(backend) : ProcessGroup();
}

}  // namespace tutti::distributed
