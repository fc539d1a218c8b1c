// ThreadWorld: sets what world() returns on this thread. run_ranks() uses it for its threads.
#pragma once

#include "../../core/scoped_value.h"
#include "../process_group.h"

namespace tutti::distributed {

/// While the object lives, world() returns `group` on this thread. The group must outlive it.
class ThreadWorld {
 public:
  explicit ThreadWorld(const ProcessGroup& group);

 private:
  ScopedValue<const ProcessGroup*> world_;
  ScopedValue<const Backend*> backend_;
};

}  // namespace tutti::distributed
