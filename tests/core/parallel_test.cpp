// Tests that parallel_for covers its range exactly once for every size, and keeps to the number of
// threads that it may use.

#include <tutti/core/control_groups.h>
#include <tutti/core/error.h>
#include <tutti/core/parallel.h>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
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

// With one range, in several, and inside of another loop.
TEST_F(Parallel, ThrowsTheFirstExceptionAfterAllRangesHaveEnded) {
  for (const int threads : {1, 4}) {
    set_num_threads(threads);
    std::atomic<int> begun{0}, ended{0};
    const auto throws = [&](std::int64_t begin, std::int64_t) {
      ++begun;
      struct Ends {
        std::atomic<int>& count;
        ~Ends() { ++count; }
      } ends{ended};
      if (begin == 0) throw ValueError("the first range");
    };
    EXPECT_THROW(parallel_for(100, 1, throws), ValueError);
    EXPECT_EQ(begun, threads);
    EXPECT_EQ(ended, threads);
    EXPECT_THROW(
        parallel_for(2, 1, [&](std::int64_t, std::int64_t) { parallel_for(100, 1, throws); }),
        ValueError);
    int calls = 0;  // the threads are as before
    parallel_for(8, 8, [&](std::int64_t, std::int64_t) { ++calls; });
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(num_threads(), threads);
  }
}

// The host program's OpenMP has given the cores to its own threads.
TEST_F(Parallel, InsideAParallelRegionOfTheHostLoopsAreSerial) {
  const auto run_region = reinterpret_cast<void (*)(void (*)(void*), void*, unsigned, unsigned)>(
      dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  if (!run_region) GTEST_SKIP() << "this process has no OpenMP";
  static std::atomic<int> alone{0}, ranges{0};
  set_num_threads(3);
  run_region(
      [](void*) {
        set_num_threads(3);
        alone += num_threads() == 1;
        parallel_for(100, 1, [](std::int64_t, std::int64_t) { ++ranges; });
      },
      nullptr, 2, 0);
  EXPECT_EQ(alone, 2);
  EXPECT_EQ(ranges, 2);
  EXPECT_EQ(num_threads(), 3);
}

TEST_F(Parallel, TheMainThreadsDefaultIsTheFirstNumberOfTheEnvironment) {
  const char* const before = std::getenv("OMP_NUM_THREADS");
  const std::string kept = before ? before : "";
  for (const auto& [text, expected] :
       {std::pair{"3", 3}, {"5,2", 5}, {"many", available_cores()}, {"0", available_cores()}}) {
    setenv("OMP_NUM_THREADS", text, 1);
    EXPECT_EQ(default_threads_of_main_thread(), expected) << text;
  }
  before ? setenv("OMP_NUM_THREADS", kept.c_str(), 1) : unsetenv("OMP_NUM_THREADS");
}

TEST_F(Parallel, TheThreadCountBelongsToTheCallingThread) {
  set_num_threads(3);
  std::thread([] {
    set_num_threads(1);
    EXPECT_EQ(num_threads(), 1);
  }).join();
  EXPECT_EQ(num_threads(), 3);
  EXPECT_THROW(set_num_threads(0), ValueError);
  EXPECT_GE(available_cores(), 1);
}

}  // namespace
}  // namespace tutti
