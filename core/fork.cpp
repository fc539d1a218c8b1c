#include "fork.h"

#include <pthread.h>

#include <atomic>

namespace tutti {

std::uint64_t process_generation() {
  static std::atomic<std::uint64_t> generation{0};
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { ++generation; });
  return generation.load(std::memory_order_relaxed);
}

}  // namespace tutti
