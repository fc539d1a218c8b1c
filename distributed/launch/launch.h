// find_launch: which MPI job this process belongs to, as the variables of the launcher say. Nothing
// is started here. ThreadWorld sets what world() returns on a thread.
#pragma once

#include "../../core/scoped_value.h"
#include "../backend.h"
#include "../process_group.h"

namespace tutti::distributed {

/// Reads the variables, and returns the rank of this process and the number of all. MPI has to be
/// asked where they say that there are several processes. Throws a DistributedError that lists what
/// was found, and says how to start instead, where a variable shows several processes that MPI
/// cannot find, such as those of torchrun, or is no number.
GroupInfo find_launch();

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
