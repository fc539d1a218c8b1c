// What world() returns on this thread. Set by run_ranks for its threads and by from_environment for
// the process.
#pragma once

#include "../process_group.h"

namespace tutti::distributed {

/// While one lives, world() is `group` on this thread. The group must outlive it.
class ThreadWorld {
 public:
  explicit ThreadWorld(const ProcessGroup& group);
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

 private:
  const ProcessGroup* before_;
};

}  // namespace tutti::distributed
