// What the launcher of this process, Open MPI's or MPICH's, says in its environment.
#pragma once

#include <cstdlib>

namespace tutti::test {

inline const char* launched(const char* by_open_mpi, const char* by_mpich) {
  const char* const value = std::getenv(by_open_mpi);
  return value ? value : std::getenv(by_mpich);
}
inline const char* launched_rank() { return launched("OMPI_COMM_WORLD_RANK", "PMI_RANK"); }
inline const char* launched_size() { return launched("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"); }
inline const char* launched_local_rank() {
  return launched("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID");
}

}  // namespace tutti::test
