// A sleep of threads that can be stopped. It stands apart from watcher.h, which is public, because
// libc++ has <stop_token> from version 20 on.
#pragma once

#include <chrono>
#include <stop_token>

namespace tutti::distributed {

/// Sleeps for `time`, or until the calling thread is to stop. Returns whether it is.
bool sleep_unless_stopped(const std::stop_token& stop, std::chrono::milliseconds time);

}  // namespace tutti::distributed
