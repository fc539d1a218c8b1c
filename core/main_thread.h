// is_main_thread() tells the thread that runs main() from all others, which begin with other
// defaults: their number of compute threads (parallel.h) and their generator (random.h).
#pragma once

#include <unistd.h>

namespace tutti {

/// Returns whether the calling thread is the process's first one.
inline bool is_main_thread() { return gettid() == getpid(); }

}  // namespace tutti
