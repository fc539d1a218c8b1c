// Tests that parallel_for covers its range exactly once for every size, and keeps to the number of
// threads that it may use.
#include "openmp.h"

#include <tutti/core/error.h>
#include <tutti/core/parallel.h>

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace tutti {
namespace {

class Parallel : public ::testing::Test {
 protected:
  ~Parallel() override { set_num_threads(before_); }
  int before_ = num_threads();
};

TEST_F(Parallel, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 5})
    for (const std::int64_t n : {0, 1, 2, 7, 100, 1001})
      for (const std::int64_t grain : {0, 1, 3, 1000}) {
        set_num_threads(threads);
        const auto visits = std::make_unique<std::atomic<int>[]>(static_cast<std::size_t>(n + 1));
        parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        for (std::int64_t i = 0; i < n; ++i)
          ASSERT_EQ(visits[static_cast<std::size_t>(i)], 1) << n << " " << grain;
      }
}

TEST_F(Parallel, SmallWorkStaysOnTheCallingThread) {
  set_num_threads(4);
  int calls = 0;
  parallel_for(199, 100, [&](std::int64_t begin, std::int64_t end) {
    ++calls;
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 199);
  });
  EXPECT_EQ(calls, 1);
}

TEST_F(Parallel, NestedLoopsAreSerial) {
  set_num_threads(2);
  std::atomic<int> inner_calls{0};
  parallel_for(2, 1, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(num_threads(), 1);
    for (std::int64_t i = begin; i < end; ++i)
      parallel_for(100, 1, [&](std::int64_t, std::int64_t) { ++inner_calls; });
  });
  EXPECT_EQ(inner_calls, 2);
}

TEST_F(Parallel, TheThreadCountBelongsToTheCallingThread) {
  set_num_threads(3);
  std::thread([] {
    set_num_threads(1);
    EXPECT_EQ(num_threads(), 1);
  }).join();
  EXPECT_EQ(num_threads(), test::has_openmp ? 3 : 1);
  EXPECT_THROW(set_num_threads(0), ValueError);
  EXPECT_GE(available_cores(), 1);
}

}  // namespace
}  // namespace tutti
