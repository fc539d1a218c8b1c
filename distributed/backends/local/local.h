// The local backend as the rest of the library sees it: ranks are threads of one process.
#pragma once

#include "../../backend.h"

namespace tutti::distributed::local {

/// Makes the world groups of all ranks, by rank. `world` has their number, the timeout and whether
/// a rank alone communicates; `ranks_per_host` is as in RunOptions.
std::vector<std::shared_ptr<Backend>> make_world(GroupInfo world, int ranks_per_host = 0);

}  // namespace tutti::distributed::local
