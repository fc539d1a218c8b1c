// ThreadWorld: sets what world() returns on this thread. run_ranks() uses it for its threads.
#pragma once

#include "../process_group.h"

namespace tutti::distributed {

/// While the object lives, world() returns `group` on this thread. The group must outlive it.
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
