// What the environment says about the run this process belongs to: the variables of mpirun, PMI
// launchers, srun and torchrun, under the explicit arguments of from_environment(). Reads only;
// nothing is started here.
#pragma once

#include "../process_group.h"

namespace tutti::distributed {

struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = -1;          ///< -1 where nobody said
  bool by_mpi = false;          ///< started by a launcher whose processes MPI can find
  std::string found = {};       ///< "RANK=1 WORLD_SIZE=4 MASTER_ADDR=node1": for messages
  std::string rendezvous = {};  ///< as WorldOptions::rendezvous; empty where nobody said
  std::string run_id = {};
};

/// DistributedError that lists what was found where a set of variables is partial, says nonsense or
/// contradicts another; ValueError for arguments that do.
Launch find_launch(const WorldOptions& options);

}  // namespace tutti::distributed
