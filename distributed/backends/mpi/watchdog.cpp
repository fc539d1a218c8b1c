#include "watchdog.h"

#include "../../group_info.h"
#include "../../stoppable_sleep.h"
#include "../../world.h"
#include "library.h"
#include "mpi.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace tutti::distributed::mpi {
namespace {

using namespace std::chrono_literals;

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

BlockingCall::BlockingCall(const char* call, std::string whom, std::chrono::milliseconds timeout) {
  if (timeout <= 0ms) timeout = process().timeout;
  ++process().blocking_calls;
  try {
    thread_ = std::jthread([=, whom = std::move(whom)](const std::stop_token& stop) {
      // Counts only time in which this process runs: a rank that was stopped is not the one that
      // waits.
      constexpr auto slice = 100ms;
      for (auto left = timeout; left > 0ms; left -= slice)
        if (sleep_unless_stopped(stop, std::min<std::chrono::milliseconds>(left, slice))) return;
      give_up(call, whom, process().rank, timeout);
    });
  } catch (const std::system_error&) {
    // A destructor may be calling, and the call will probably return.
  }
}

BlockingCall::~BlockingCall() { --process().blocking_calls; }

}  // namespace tutti::distributed::mpi
