// The local backend as the rest of the library sees it: ranks are threads of one process.
#pragma once

#include "../../backend.h"

namespace tutti::distributed::local {

inline constexpr Capabilities capabilities = {};

/// Makes a world of `ranks` threads.
RanksAsThreads make_thread_ranks(int ranks, std::chrono::milliseconds timeout);

}  // namespace tutti::distributed::local
