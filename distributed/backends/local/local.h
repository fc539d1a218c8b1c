// The local backend as the rest of the library sees it: ranks are threads of one process.
#pragma once

#include "../../backend.h"

namespace tutti::distributed::local {

/// What makes a world of threads.
struct Options {
  int ranks = 1;
  std::chrono::milliseconds timeout = default_group_timeout;
  int ranks_per_host = 0;           ///< As in RunOptions.
  bool communicates_alone = false;  ///< As in GroupInfo.
};

/// Makes the world groups of all ranks, by rank.
std::vector<std::shared_ptr<Backend>> make_world(const Options& options);

}  // namespace tutti::distributed::local
