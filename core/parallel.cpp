// The threads of parallel_for are in openmp.cpp or, in a build without OpenMP, in
// openmp_unavailable.cpp.
#include "parallel.h"

#include <sched.h>

namespace tutti {

int available_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace tutti
