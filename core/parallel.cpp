#include "parallel.h"

#include "error.h"

#include <omp.h>
#include <sched.h>

namespace tutti {

void set_num_threads(int threads) {
  if (threads < 1) fail<ValueError>("set_num_threads: expected at least 1, got {}", threads);
  omp_set_num_threads(threads);
}

int num_threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

int available_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

void detail::run_parallel(int threads, void (*body)(int, int, void*), void* context) {
#pragma omp parallel num_threads(threads)
  body(omp_get_thread_num(), omp_get_num_threads(), context);
}

}  // namespace tutti
