// The MPI backend where CMake found no MPI.
#include "mpi.h"

namespace tutti::distributed::mpi {

std::string why_unavailable() {
  return "this library was built without MPI; install libopenmpi-dev and openmpi-bin, then "
         "configure with -DTUTTI_MPI=ON";
}

std::shared_ptr<Backend> make_world(const GroupInfo& launch) {
  fail<DistributedError>("the launcher started {} processes, but {}", launch.size,
                         why_unavailable());
}

bool is_initialized() { return false; }
bool allows_threads() { return false; }

}  // namespace tutti::distributed::mpi
