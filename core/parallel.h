// The number of threads that a thread of the program computes with, and parallel_for, the loop that
// uses them. The count is OpenMP's and belongs to the calling thread, so ranks that are threads of
// one process each have their own and share the cores. The threads are those of thread_pool.h
// (openmp.cpp) or, in a build without OpenMP, none but the caller (openmp_unavailable.cpp).
#pragma once

#include "denormals.h"
#include "scoped_value.h"

#include <unistd.h>

#include <cstdint>
#include <string>

namespace tutti {

/// Sets how many threads the calling thread computes with, at least 1. The default of the main
/// thread is what OpenMP chooses: OMP_NUM_THREADS, or all cores; without OMP_NUM_THREADS, a quota
/// of processor time (a container's) lowers it. The default of every other thread is 1, because a
/// program with many threads would otherwise start as many times all cores. The ranks of
/// run_ranks() share the count of their caller. In a library built without OpenMP every thread
/// computes alone: the call then only checks `threads`, and num_threads() stays 1.
void set_num_threads(int threads);
/// Returns how many threads the calling thread computes with.
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

void run_parallel(int threads, void (*body)(int thread, int threads, void* context), void* context);

/// Lets OpenMP start num_threads() threads from the calling thread while it exists, for libraries
/// that ask OpenMP. It restores the thread's own setting, on which code of the host program may
/// rely.
class OpenMPThreads {
 public:
  OpenMPThreads();
  ~OpenMPThreads();
  OpenMPThreads(const OpenMPThreads&) = delete;
  OpenMPThreads& operator=(const OpenMPThreads&) = delete;

 private:
  int before_ = 0;  ///< 0 where nothing has to be restored
};
}  // namespace detail

/// Calls body(begin, end) for disjoint ranges that cover [0, n), in parallel if n is at least
/// 2 * grain. The ranges depend on n, grain and num_threads() alone. `body` must not throw.
template <class Body>
void parallel_for(std::int64_t n, std::int64_t grain, Body&& body) {
  if (n <= 0) return;
  const std::int64_t most = grain > 0 ? n / grain : n;
  const int threads = most < 2 ? 1 : static_cast<int>(most < num_threads() ? most : num_threads());
  const bool flushes = detail::flushes_denormals_here();
  const detail::DenormalScope scope(flushes);  // threads that start inherit it
  if (threads == 1) {
    body(std::int64_t{0}, n);
    return;
  }
  struct Context {
    Body& body;
    std::int64_t n;
    bool flushes;
  } context{body, n, flushes};
  detail::run_parallel(
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
