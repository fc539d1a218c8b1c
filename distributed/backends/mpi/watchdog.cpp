#include "watchdog.h"

#include "../../collective.h"
#include "../../host_layout.h"
#include "library.h"
#include "mpi.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

namespace tutti::distributed::mpi {
namespace {

using namespace std::chrono_literals;

std::mutex defaults_mutex;
BlockingCallDefaults blocking_call_defaults;

BlockingCallDefaults read_defaults() {
  const std::lock_guard lock(defaults_mutex);
  return blocking_call_defaults;
}

// Returns whether MPI_Abort may be called on another thread while `call` blocks.
bool may_abort(const char* call) {
  for (const char* never : {"MPI_Init_thread", "MPI_Finalize", "MPI_Abort"})
    if (std::strcmp(call, never) == 0) return false;
  return is_usable() && is_initialized() && allows_threads();
}

// MPI_Abort may block as well, where the launcher's daemon does not answer. Then the exit code
// tells the launcher to end the other processes.
[[noreturn]] void end_job(const char* call) {
  if (may_abort(call)) {
    std::thread([] { MPI_Abort(MPI_COMM_WORLD, 1); }).detach();
    std::this_thread::sleep_for(2s);
  }
  // _exit() drops what the program has printed and not flushed; a thread may hold the lock for
  // ever.
  if (ftrylockfile(stdout) == 0) std::fflush(stdout);
  _exit(1);
}

[[noreturn]] void give_up(const char* call, const std::string& whom, int rank,
                          std::chrono::milliseconds timeout) {
  // std::fprintf of glibc 2.37 writes 128 bytes at a time, between which other ranks may write.
  const std::string text = fmt::format(
      "tutti: rank {} (process {} on {}) has waited {} in {} for {} and ends the job. A rank that "
      "prints no such line hangs elsewhere, is stopped or has ended before; where all are only "
      "slow, pass a longer timeout to from_environment()\n",
      rank, getpid(), host_name(), distributed::to_string(timeout), call, whom);
  std::fputs(text.c_str(), stderr);
  std::this_thread::sleep_for(1s);  // the launcher ends the others as soon as one has ended
  end_job(call);
}

}  // namespace

struct BlockingCall::Watch {
  // Counts only time in which this process runs: a rank that was stopped is not the one that waits.
  bool is_done_within(std::chrono::milliseconds left) {
    constexpr auto slice = 100ms;
    std::unique_lock lock(mutex);
    for (; left > 0ms && !done; left -= std::min<std::chrono::milliseconds>(left, slice))
      changed.wait_for(lock, std::min<std::chrono::milliseconds>(left, slice),
                       [&] { return done; });
    return done;
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::thread thread;
};

void set_blocking_call_defaults(const BlockingCallDefaults& defaults) {
  const std::lock_guard lock(defaults_mutex);
  blocking_call_defaults = defaults;
}

BlockingCall::BlockingCall(const char* call, std::string whom, std::chrono::milliseconds timeout)
    : watch_(std::make_unique<Watch>()) {
  const BlockingCallDefaults defaults = read_defaults();
  if (timeout <= 0ms) timeout = defaults.timeout;
  Watch& watch = *watch_;
  const auto wait = [&watch, call, whom = std::move(whom), rank = defaults.rank, timeout] {
    if (!watch.is_done_within(timeout)) give_up(call, whom, rank, timeout);
  };
  try {
    watch.thread = std::thread(wait);
  } catch (const std::system_error&) {
    watch_.reset();  // a destructor may be calling, and the call will probably return
  }
}

BlockingCall::~BlockingCall() {
  if (!watch_) return;
  {
    const std::lock_guard lock(watch_->mutex);
    watch_->done = true;
  }
  watch_->changed.notify_one();
  watch_->thread.join();
}

}  // namespace tutti::distributed::mpi
