// Launch: which run this process belongs to, as the environment variables of mpirun, PMI launchers,
// srun or torchrun say; explicit arguments of from_environment() override them. Nothing is started
// here. ThreadWorld sets what world() returns on a thread.
#pragma once

#include "../../core/scoped_value.h"
#include "../process_group.h"

namespace tutti::distributed {

struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = -1;          ///< -1 where it is unknown.
  int local_size = -1;          ///< The number of ranks on this host; -1 where it is unknown.
  bool by_mpi = false;          ///< The launcher is one whose processes MPI can find.
  std::string found = {};       ///< For messages: "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1".
  std::string rendezvous = {};  ///< As WorldOptions::rendezvous; empty where it is unknown.
  std::string run_id = {};
};

/// Reads the variables and the options. Throws a DistributedError that lists what was found where
/// the variables of a launcher are incomplete, are no numbers, or contradict those of another
/// launcher; throws a ValueError where the options are incomplete.
Launch find_launch(const WorldOptions& options);

/// Returns the secret that the options or the environment give, as WorldOptions describes it; empty
/// where they give none. Removes TUTTI_RENDEZVOUS_SECRET from the environment; later calls know it
/// nevertheless. Throws a ValueError where it is too short or too long or given twice, and
/// a DistributedError where its file is missing or others have rights to it.
std::string find_secret(const WorldOptions& options);

/// While the object lives, world() returns `group` on this thread, which is a rank of run_ranks().
/// The group must outlive it.
class ThreadWorld {
 public:
  explicit ThreadWorld(const ProcessGroup& group);

 private:
  ScopedValue<const ProcessGroup*> world_;
  ScopedValue<const Backend*> backend_;
};

}  // namespace tutti::distributed
