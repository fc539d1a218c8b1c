// ProcessGroup::from_environment() and world(): how the processes of a launch become one world. The
// launch (launch.h) says which ranks there are; this file chooses the backend and brings the ranks
// together.
#include "../backends.h"
#include "../backends/mpi/mpi.h"
#include "launch.h"
#include "rendezvous/secret.h"
#include "rendezvous/store.h"

#include <algorithm>
#include <cstdlib>

namespace tutti::distributed {
namespace {

ProcessGroup& process_world() {
  static auto& group = *new ProcessGroup;  // threads may outlive static objects
  return group;
}
thread_local const ProcessGroup* thread_world = nullptr;

const BackendEntry& first_backend_of(ProcessLaunch launch) {
  const auto all = backends();
  return *std::find_if(all.begin(), all.end(),
                       [&](const BackendEntry& entry) { return entry.launch == launch; });
}

// Returns null for one process, unless it asks for a backend whose group of one communicates. MPI
// is not touched then, because its initialisation takes half a second.
const BackendEntry* choose_backend(const WorldOptions& options, const Launch& launch) {
  const BackendEntry* wanted = find_backend(options.backend);
  if (!options.backend.empty() && (!wanted || wanted->launch == ProcessLaunch::none))
    fail<ValueError>("from_environment: unknown backend '{}': expected mpi or nccl",
                     options.backend);
  const bool one_process = launch.size == 1 && !mpi::is_initialized();
  if (one_process && !(wanted && wanted->capabilities.issues_alone)) return nullptr;
  const bool mpi_finds_us = launch.by_mpi || mpi::is_initialized();
  const BackendEntry& chosen = wanted ? *wanted
                                      : first_backend_of(mpi_finds_us ? ProcessLaunch::mpi_launcher
                                                                      : ProcessLaunch::rendezvous);
  if (chosen.launch == ProcessLaunch::mpi_launcher) {
    if (mpi_finds_us) return &chosen;
    fail<DistributedError>(
        "from_environment: MPI cannot find processes that no MPI launcher started ({}); start them "
        "as 'mpirun -n {} PROGRAM'",
        launch.found, launch.size);
  }
  const std::string why = chosen.why_unavailable();
  if (why.empty()) return &chosen;
  if (wanted)
    fail<DistributedError>("from_environment: the {} backend cannot be used here: {}", chosen.name,
                           why);
  fail<DistributedError>(
      "from_environment: {} ask for {} processes without an MPI launcher, which only the {} "
      "backend can do, and that is not available: {}. For CPU tensors start it as 'mpirun -n {} "
      "PROGRAM'",
      launch.found, launch.size, chosen.name, why, launch.size);
}

// Opens the store at the address that the options or the variables give. Ranks on several hosts
// must have been given a secret, because there is no way to give them a random one.
std::shared_ptr<rendezvous::Store> open_at_address(const WorldOptions& options,
                                                   const Launch& launch) {
  std::string secret = find_secret(options);
  if (secret.empty() && launch.local_size > 0 && launch.local_size < launch.size)
    rendezvous::throw_missing_secret(fmt::format(
        "from_environment: only {} of {} ranks are on this host, and ranks on several hosts need a "
        "secret",
        launch.local_size, launch.size));
  return rendezvous::open(launch.rendezvous, {launch.rank, launch.size, launch.run_id,
                                              options.timeout, std::move(secret)});
}

// Opens the store through which the ranks of an NCCL world find each other.
std::shared_ptr<rendezvous::Store> open_rendezvous(const WorldOptions& options,
                                                   const Launch& launch) {
  const rendezvous::Member alone{.run_id = launch.run_id, .timeout = options.timeout};
  const auto in_memory = [&] {
    return rendezvous::in_memory(std::make_shared<rendezvous::SharedTable>(), alone);
  };
  if (launch.size == 1 && !mpi::is_initialized()) return in_memory();
  if (!launch.rendezvous.empty()) return open_at_address(options, launch);
  if (!launch.by_mpi && !mpi::is_initialized())
    fail<DistributedError>(
        "from_environment: no address at which the ranks find each other; found {}. Set "
        "MASTER_ADDR and MASTER_PORT (torchrun does), or pass rendezvous = \"HOST:PORT\"",
        launch.found);
  const auto over_mpi = mpi::make_world(
      {.rank = launch.rank, .expected_size = launch.size, .timeout = options.timeout});
  return over_mpi ? rendezvous::over(ProcessGroup(over_mpi), options.timeout) : in_memory();
}

std::shared_ptr<Backend> make_world(const WorldOptions& options, const Launch& launch) {
  const BackendEntry* backend = choose_backend(options, launch);
  if (!backend) return nullptr;
  // MPI counts the ranks of a host itself, unless the caller tells the local rank.
  const bool counts = backend->launch == ProcessLaunch::mpi_launcher;
  return backend->make_world({.rank = launch.rank,
                              .expected_size = launch.size,
                              .local_rank = counts ? options.local_rank : launch.local_rank,
                              .device = options.device,
                              .timeout = options.timeout,
                              .open_store = [&] { return open_rendezvous(options, launch); }});
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
  const Launch launch = find_launch(options);
  const auto backend = make_world(options, launch);
  if (backend && options.world_size > 0 &&
      (backend->info().rank != options.rank || backend->info().size != options.world_size))
    fail<ValueError>(
        "from_environment: this is rank {} of {} for MPI, but rank {} and world_size {} were given",
        backend->info().rank, backend->info().size, options.rank, options.world_size);
  // A group of several ranks ends at exit before its transport does.
  [[maybe_unused]] static const int at_exit = std::atexit([] {
    if (process_world().communicates()) process_world() = ProcessGroup();
  });
  return process_world() = backend ? ProcessGroup(backend) : ProcessGroup();
}

}  // namespace tutti::distributed
