// The threads of parallel_for, which are OpenMP's.
#include "error.h"
#include "memory.h"
#include "parallel.h"

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
  static const int most = std::getenv("OMP_NUM_THREADS") ? INT_MAX : available_cores();
  return most;
}

// GCC's OpenMP keeps the threads of a loop for the next one, and the child of a fork, which has not
// got them, would wait for them for ever. So they end before the fork; parent and child start
// others. The allocator comes first, because its lock must not be held while threads end.
[[maybe_unused]] const int ends_threads_before_forks =
    (allocator(Device::cpu()), pthread_atfork([] { omp_pause_resource_all(omp_pause_soft); }, nullptr, nullptr));

}  // namespace

void set_num_threads(int threads) {
  if (threads < 1) fail<ValueError>("set_num_threads: expected at least 1, got {}", threads);
  omp_set_num_threads(threads);
  count = Count::chosen;
}

int num_threads() {
  if (count == Count::one || omp_in_parallel()) return 1;
  const int of_openmp = omp_get_max_threads();
  return count == Count::chosen ? of_openmp : std::min(of_openmp, most_by_default());
}

void detail::run_parallel(int threads, void (*body)(int, int, void*), void* context) {
#pragma omp parallel num_threads(threads)
  body(omp_get_thread_num(), omp_get_num_threads(), context);
}

detail::OpenMPThreads::OpenMPThreads() {
  const int threads = num_threads(), of_openmp = omp_get_max_threads();
  if (threads != of_openmp) {
    before_ = of_openmp;
    omp_set_num_threads(threads);
  }
}

detail::OpenMPThreads::~OpenMPThreads() {
  if (before_ > 0) omp_set_num_threads(before_);
}

}  // namespace tutti
