// What a process holds, to see that cycles of making and destroying leave nothing behind.
#pragma once

#include <tutti/core/memory.h>

#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>

namespace tutti::testing {

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
  /// Once no more threads and tensors are there than `most` has: a thread that was joined may be
  /// seen a moment longer, and a watcher lets go of what was thrown away when it looks. On a busy
  /// machine that takes time, but no longer than this.
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

/// After many cycles: a leak in each shows as their number. `before` may count a thread too many,
/// one that was about to end, so that nothing here asks for equality. `heap`: bytes that may stay.
inline void expect_nothing_left(const Resources& before, std::size_t heap) {
  const auto after = Resources::settled(before);
  EXPECT_LE(after.descriptors, before.descriptors);
  EXPECT_LE(after.threads, before.threads);
  EXPECT_LE(after.tensors, before.tensors);
  EXPECT_LT(static_cast<double>(after.heap) - static_cast<double>(before.heap),
            static_cast<double>(heap));
}

}  // namespace tutti::testing
