// The number of threads that a thread of the program computes with, and parallel_for, the loop that
// uses them. The count belongs to the calling thread, so ranks that are threads of one process each
// have their own and share the cores. The threads are those of thread_pool.h.
#pragma once

#include "denormals.h"
#include "scoped_value.h"
#include "thread_pool.h"

#include <unistd.h>

#include <cstdint>
#include <string>

namespace tutti {

/// Sets how many threads the calling thread computes with, at least 1. The default of the main
/// thread is OMP_NUM_THREADS (its first number), or available_cores(). The default of every other
/// thread is 1, because a program with many threads would otherwise start as many times all cores.
/// The ranks of run_ranks() share the count of their caller.
void set_num_threads(int threads);
/// Returns how many threads the calling thread computes with: 1 inside a loop of parallel_for, and
/// inside a parallel region of the host's OpenMP.
int num_threads();
/// Returns how many cores' time this process may use: the cores of its affinity mask, or the quota
/// of its control groups (`docker --cpus`, a limit of Kubernetes), rounded down, if that is less.
int available_cores();
/// Returns such as "2 threads (8 cores, quota of 2)" for num_threads(); "8 threads" without a quota
/// that is less than the cores.
std::string describe_threads();

namespace detail {
/// Returns whether the calling thread is the process's first one. All others begin with other
/// defaults: their number of compute threads and their generator (random.h).
inline bool is_main_thread() { return gettid() == getpid(); }

std::string describe_threads(int threads, int cores, int quota);

/// Lets OpenMP use the calling thread alone while it exists, for libraries that ask OpenMP how many
/// threads to use. It restores the thread's own setting, on which code of the host may rely. The
/// helpers of parallel_for have one all the time.
class OneOpenMPThread {
 public:
  OneOpenMPThread();
  ~OneOpenMPThread();
  OneOpenMPThread(const OneOpenMPThread&) = delete;
  OneOpenMPThread& operator=(const OneOpenMPThread&) = delete;

 private:
  int before_;  ///< 1 where nothing has to be restored
};
}  // namespace detail

/// Calls body(begin, end) for disjoint ranges that cover [0, n), in parallel if n is at least
/// 2 * grain. A grain below 1 counts as 1. The ranges depend on n, grain and num_threads() alone.
/// Throws the first exception of `body` after all ranges that have begun have ended.
template <class Body>
void parallel_for(std::int64_t n, std::int64_t grain, Body&& body) {
  if (n <= 0) return;
  const std::int64_t most = grain > 0 ? n / grain : n;
  const int threads = most < 2 ? 1 : static_cast<int>(most < num_threads() ? most : num_threads());
  const bool flushes = detail::flushes_denormals_here();
  if (threads == 1) {
    const detail::DenormalScope scope(flushes);
    body(std::int64_t{0}, n);
    return;
  }
  struct Context {
    Body& body;
    std::int64_t n;
    bool flushes;
  } context{body, n, flushes};
  detail::run_shares(
      threads,
      [](int thread, int count, void* opaque) {
        auto& c = *static_cast<Context*>(opaque);
        const detail::DenormalScope denormals(c.flushes);
        const ScopedValue keeps(detail::keeps_denormals, !c.flushes);  // for loops inside
        const std::int64_t begin = c.n * thread / count, end = c.n * (thread + 1) / count;
        if (begin < end) c.body(begin, end);
      },
      &context);
}

}  // namespace tutti
