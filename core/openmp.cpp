// The threads of parallel_for, which are OpenMP's.
#include "error.h"
#include "memory.h"
#include "parallel.h"

#include <omp.h>
#include <pthread.h>

namespace tutti {
namespace {

// Whether the calling thread computes with the number of threads that OpenMP has for it.
thread_local bool follows_openmp = detail::is_main_thread();

// GCC's OpenMP keeps the threads of a loop for the next one, and the child of a fork, which has not
// got them, would wait for them for ever. So they end before the fork; parent and child start
// others. The allocator comes first, because its lock must not be held while threads end.
[[maybe_unused]] const int ends_threads_before_forks =
    (allocator(Device::cpu()),
     pthread_atfork([] { omp_pause_resource_all(omp_pause_soft); }, nullptr, nullptr));

}  // namespace

void set_num_threads(int threads) {
  if (threads < 1) fail<ValueError>("set_num_threads: expected at least 1, got {}", threads);
  omp_set_num_threads(threads);
  follows_openmp = true;
}

int num_threads() { return follows_openmp && !omp_in_parallel() ? omp_get_max_threads() : 1; }

void detail::run_parallel(int threads, void (*body)(int, int, void*), void* context) {
#pragma omp parallel num_threads(threads)
  body(omp_get_thread_num(), omp_get_num_threads(), context);
}

detail::OpenMPThreads::OpenMPThreads() {
  if (follows_openmp || omp_get_max_threads() == 1) return;
  before_ = omp_get_max_threads();
  omp_set_num_threads(1);
}

detail::OpenMPThreads::~OpenMPThreads() {
  if (before_ > 0) omp_set_num_threads(before_);
}

}  // namespace tutti
