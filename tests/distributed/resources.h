// Resources: what a process holds. Tests compare it before and after many cycles of making and
// destroying objects.
#pragma once

#include <tutti/core/memory.h>

#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

namespace tutti::test {

struct Resources {
  std::ptrdiff_t descriptors = 0, threads = 0;
  std::size_t tensors = 0, heap = 0;  ///< bytes

  static Resources now() {
    const auto count = [](const char* folder) {
      return std::distance(std::filesystem::directory_iterator(folder),
                           std::filesystem::directory_iterator());
    };
    return {count("/proc/self/fd"), count("/proc/self/task"), allocator(Device::cpu()).stats().live,
            mallinfo2().uordblks};
  }
  /// Waits until there are no more threads and tensors than in `most`, for 20 s at most: the system
  /// may show a joined thread a moment longer, and the watcher releases abandoned collectives only
  /// at its next check. Returns what is there then.
  static Resources settled(const Resources& most) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    Resources here = now();
    for (; here.threads > most.threads || here.tensors > most.tensors; here = now()) {
      if (std::chrono::steady_clock::now() >= deadline) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return here;
  }
};

/// Expects that no more is held than before many cycles, so a leak in each cycle shows. `heap` is
/// how many bytes may stay. Nothing is compared for equality, because `before` may count a thread
/// that was about to end.
inline void expect_nothing_left(const Resources& before, std::size_t heap) {
  const auto after = Resources::settled(before);
  EXPECT_LE(after.descriptors, before.descriptors);
  EXPECT_LE(after.threads, before.threads);
  EXPECT_LE(after.tensors, before.tensors);
  EXPECT_LT(static_cast<double>(after.heap) - static_cast<double>(before.heap),
            static_cast<double>(heap));
}

}  // namespace tutti::test
