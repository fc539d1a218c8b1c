// How many threads a thread computes with, and which: those of thread_pool.h, or OpenMP's while
// oneDNN uses them.
#include "control_groups.h"
#include "error.h"
#include "memory.h"
#include "parallel.h"
#include "signal_stack.h"
#include "thread_pool.h"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

namespace tutti {
namespace {

// Where the number of threads comes from that the calling thread computes with. All but the main
// thread compute alone by default.
enum class Count { one, by_default, chosen };
thread_local Count count = detail::is_main_thread() ? Count::by_default : Count::one;

// The most threads of a thread that has chosen no number: OpenMP does not know of quotas.
int most_by_default() {
  static const int most = std::getenv("OMP_NUM_THREADS") ? INT_MAX : core_quota();
  return most;
}

// What the OpenMP threads of the calling thread were prepared for.
struct Prepared {
  int threads = 1;
  bool flushes = false;
};
thread_local Prepared prepared;

// GCC's OpenMP keeps the threads of a loop for the next one, and the child of a fork, which has not
// got them, would wait for them without end. So they end before the fork; parent and child start
// others. The allocator comes first, because its lock must not be held while threads end.
void end_threads() {
  detail::end_helpers();
  omp_pause_resource_all(omp_pause_soft);
  prepared = {};
}
[[maybe_unused]] const int ends_threads_before_forks =
    (allocator(Device::cpu()), pthread_atfork(end_threads, nullptr, nullptr));

}  // namespace

void set_num_threads(int threads) {
  if (threads < 1) fail<ValueError>("set_num_threads: expected at least 1, got {}", threads);
  omp_set_num_threads(threads);
  count = Count::chosen;
}

int num_threads() {
  if (count == Count::one || detail::in_share || omp_in_parallel()) return 1;
  const int of_openmp = omp_get_max_threads();
  return count == Count::chosen ? of_openmp : std::min(of_openmp, most_by_default());
}

void detail::run_parallel(int threads, void (*body)(int, int, void*), void* context) {
  if (!loops_use_openmp) return run_shares(threads, body, context);
#pragma omp parallel num_threads(threads)
  body(omp_get_thread_num(), omp_get_num_threads(), context);
}

detail::OpenMPThreads::OpenMPThreads() {
  const int threads = num_threads(), of_openmp = omp_get_max_threads();
  if (threads != of_openmp) {
    before_ = of_openmp;
    omp_set_num_threads(threads);
  }
  if (threads > 1) loops_use_openmp = true;
  const bool flushes = flushes_denormals_here();
  if (threads == 1 || (threads <= prepared.threads && flushes == prepared.flushes)) return;
#pragma omp parallel num_threads(threads)
  {
    SignalStack::of_thread();
    if (omp_get_thread_num() > 0) DenormalScope::set(flushes);
  }
  prepared = {threads, flushes};
}

detail::OpenMPThreads::~OpenMPThreads() {
  if (before_ > 0) omp_set_num_threads(before_);
}

}  // namespace tutti
