// Replaces openmp.cpp where the library is built without OpenMP: every thread computes alone.
#include "error.h"
#include "parallel.h"

namespace tutti {

void set_num_threads(int threads) {
  if (threads < 1) fail<ValueError>("set_num_threads: expected at least 1, got {}", threads);
}

int num_threads() { return 1; }

void detail::run_parallel(int, void (*body)(int, int, void*), void* context) {
  body(0, 1, context);
}

detail::OpenMPThreads::OpenMPThreads() = default;
detail::OpenMPThreads::~OpenMPThreads() = default;

}  // namespace tutti
