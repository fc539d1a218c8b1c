// The local backend as the rest of the library sees it: ranks are threads of one process.
#pragma once

#include "../../backend.h"

namespace tutti::distributed::local {

inline constexpr Capabilities capabilities = {};

/// Makes a world of threads.
RanksAsThreads make_thread_ranks(const ThreadWorldOptions& options);

}  // namespace tutti::distributed::local
