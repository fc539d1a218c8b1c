#include "backends.h"

#include "backends/local/local.h"
#include "backends/mpi/mpi.h"
#include "backends/nccl/nccl.h"

namespace tutti::distributed {
namespace {

constexpr BackendEntry table[] = {
    {.name = "local",
     .capabilities = local::capabilities,
     .why_unavailable = [] { return std::string(); },
     .launch = ProcessLaunch::none,
     .make_world = nullptr,
     .make_thread_ranks = local::make_thread_ranks},
    {.name = "mpi",
     .capabilities = mpi::capabilities,
     .why_unavailable = mpi::why_unavailable,
     .launch = ProcessLaunch::mpi_launcher,
     .make_world = mpi::make_world,
     .make_thread_ranks = nullptr},
    {.name = "nccl",
     .capabilities = nccl::capabilities,
     .why_unavailable = nccl::why_unavailable,
     .launch = ProcessLaunch::rendezvous,
     .make_world = nccl::make_process_world,
     .make_thread_ranks = nccl::make_thread_ranks},
};

}  // namespace

std::span<const BackendEntry> backends() { return table; }

const BackendEntry* find_backend(std::string_view name) {
  for (const BackendEntry& entry : table)
    if (name == entry.name) return &entry;
  return nullptr;
}

}  // namespace tutti::distributed
