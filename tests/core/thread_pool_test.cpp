// Tests of the threads that work through the shares of a loop. They run under ThreadSanitizer, too.
#include <tutti/core/parallel.h>
#include <tutti/core/thread_pool.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tutti {
namespace {

// Runs a function of a share's number as run_shares() runs a body.
template <class Body>
void run_shares(int shares, Body body) {
  detail::run_shares(
      shares, [](int share, int, void* context) { (*static_cast<Body*>(context))(share); }, &body);
}

// Calls of shares are counted without a lock: whoever waits for the loop sees all of them.
void run_loops(int loops, int shares) {
  std::vector<int> counts(static_cast<std::size_t>(shares));
  for (int i = 0; i < loops; ++i)
    run_shares(shares, [&](int share) { counts[static_cast<std::size_t>(share)] += share; });
  for (int share = 0; share < shares; ++share)
    EXPECT_EQ(counts[static_cast<std::size_t>(share)], loops * share);
}

TEST(ThreadPool, RunsEveryShareOnceInLoopAfterLoop) {
  for (const int shares : {1, 2, 3, 7}) run_loops(1000, shares);
}

TEST(ThreadPool, EachThreadHasHelpersOfItsOwn) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([] { run_loops(500, 3); });
}

TEST(ThreadPool, LoopsInsideAShareAreSerial) {
  run_shares(3, [](int) {
    const auto own = std::this_thread::get_id();
    EXPECT_TRUE(detail::in_share);
    EXPECT_EQ(num_threads(), 1);
    run_shares(5, [&](int) { EXPECT_EQ(std::this_thread::get_id(), own); });
  });
  EXPECT_FALSE(detail::in_share);
}

// The only helper is held up in a share, and the caller takes all others.
TEST(ThreadPool, TheCallerTakesTheSharesThatNobodyHasBegun) {
  const auto caller = std::this_thread::get_id();
  run_shares(2, [](int) {});  // starts the helper
  std::atomic<int> of_caller{0};
  run_shares(2, [&](int) {
    if (std::this_thread::get_id() == caller) ++of_caller;
    else
      while (of_caller == 0) std::this_thread::yield();
  });
  EXPECT_GE(of_caller, 1);
}

TEST(ThreadPool, CarriesTheExceptionOfAShareAfterTheOthersHaveEnded) {
  for (int i = 0; i < 100; ++i) {
    std::atomic<int> ended{0};
    EXPECT_THROW(run_shares(4,
                            [&](int share) {
                              if (share == i % 4) throw std::runtime_error("share");
                              ++ended;
                            }),
                 std::runtime_error);
    EXPECT_EQ(ended, 3);
  }
  run_loops(10, 4);
}

TEST(ThreadPool, HelpersThatHaveEndedStartAnew) {
  for (int i = 0; i < 20; ++i) {
    run_loops(5, 3);
    detail::end_helpers();
  }
}

TEST(ThreadPool, UsesNoProcessorTimeBetweenLoops) {
  run_loops(100, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const auto used = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double before = used();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(used() - before, 0.002);
}

}  // namespace
}  // namespace tutti
