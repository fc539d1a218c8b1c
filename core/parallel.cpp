#include "parallel.h"

#include "control_groups.h"
#include "error.h"
#include "memory.h"
#include "thread_pool.h"

#include <dlfcn.h>
#include <pthread.h>

namespace tutti {
namespace {

// How many threads the calling thread computes with; 0 before it first asks.
constinit thread_local int count = 0;

// The child of a fork has not got the helpers of the thread that forks, and would wait for them
// without end. So they end before the fork; parent and child start others. The allocator comes
// first, because its lock must not be held while threads end.
[[maybe_unused]] const int ends_helpers_before_forks =
    (allocator(Device::cpu()), pthread_atfork(detail::end_helpers, nullptr, nullptr));

// The functions of OpenMP's interface that tutti calls. tutti does not link it: the host program
// may, and so may oneDNN's library. In a process without OpenMP each thread is alone.
struct OpenMP {
  int (*in_parallel)() = find<int()>("omp_in_parallel", [] { return 0; });
  int (*get_max_threads)() = find<int()>("omp_get_max_threads", [] { return 1; });
  void (*set_num_threads)(int) = find<void(int)>("omp_set_num_threads", [](int) {});

  static const OpenMP& of_process() {
    static const OpenMP functions;
    return functions;
  }

 private:
  template <class Function>
  static Function* find(const char* name, Function* otherwise) {
    void* const found = dlsym(RTLD_DEFAULT, name);
    return found ? reinterpret_cast<Function*>(found) : otherwise;
  }
};

}  // namespace

void set_num_threads(int threads) {
  if (threads < 1) fail<ValueError>("set_num_threads: expected at least 1, got {}", threads);
  count = threads;
}

int num_threads() {
  if (count == 0) count = detail::is_main_thread() ? default_threads_of_main_thread() : 1;
  return count == 1 || detail::in_share || OpenMP::of_process().in_parallel() ? 1 : count;
}

detail::OneOpenMPThread::OneOpenMPThread() : before_(OpenMP::of_process().get_max_threads()) {
  if (before_ != 1) OpenMP::of_process().set_num_threads(1);
}

detail::OneOpenMPThread::~OneOpenMPThread() {
  if (before_ != 1) OpenMP::of_process().set_num_threads(before_);
}

}  // namespace tutti
