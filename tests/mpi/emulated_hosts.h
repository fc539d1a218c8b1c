// The hosts of a run of the MPI tests, emulated or not, for threads that are to add in the same
// order.
#pragma once

#include <tutti/distributed/backend.h>
#include <tutti/distributed/group_info.h>
#include <tutti/distributed/process_group.h>

namespace tutti::test {

/// Returns options with which ranks as threads give the bits of this run's processes, whose hosts
/// have equally many ranks each, but for the last one.
inline distributed::RunOptions as_these_processes() {
  const distributed::HostLayout layout(distributed::world().implementation()->info());
  return {.ranks_per_host = layout.is_one_host() ? 0
                                                 : static_cast<int>(layout.hosts.front().size())};
}

}  // namespace tutti::test
