// The hosts that a run of the MPI tests emulates on this machine (TUTTI_RANKS_PER_HOST), for
// threads that are to add in the same order.
#pragma once

#include <tutti/distributed/process_group.h>

#include <cstdlib>

namespace tutti::test {

/// Returns options with which ranks as threads give the bits of this run's processes.
inline distributed::RunOptions as_these_processes() {
  const char* ranks_per_host = std::getenv("TUTTI_RANKS_PER_HOST");
  return {.ranks_per_host = ranks_per_host ? std::atoi(ranks_per_host) : 0};
}

}  // namespace tutti::test
