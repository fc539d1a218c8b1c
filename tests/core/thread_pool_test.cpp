// Tests of the threads that work through the shares of a loop. They run under ThreadSanitizer, too.
#include <tutti/core/parallel.h>
#include <tutti/core/thread_pool.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
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

// The text after `name` in the status of each thread of the process, by its directory.
std::map<std::string, std::string> status_of_threads(const std::string& name) {
  std::map<std::string, std::string> found;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with(name)) found[thread.path()] = line.substr(name.size());
  }
  return found;
}

// Where a helper is awake, small loops leave the others asleep. A helper that wakes sleeps again
// later, which the system counts.
TEST(ThreadPool, SmallLoopsWakeNoMoreHelpersThanTheyNeed) {
  run_loops(1, 8);
  const auto sleeps = [] { return status_of_threads("voluntary_ctxt_switches:"); };
  std::ptrdiff_t fewest_woken = 8;
  for (int burst = 0; burst < 20; ++burst) {  // of which others may delay some
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto before = sleeps();
    for (int i = 0; i < 8; ++i) run_shares(2, [](int) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::ptrdiff_t woken = -1;  // the calling thread slept
    for (const auto& [thread, count] : sleeps()) woken += before.at(thread) != count;
    fewest_woken = std::min(fewest_woken, woken);
  }
  EXPECT_LE(fewest_woken, 2);
}

TEST(ThreadPool, LoopsBehindTheEndOfTheHelpersAreSerial) {
  struct Last {
    ~Last() {
      const auto own = std::this_thread::get_id();
      run_shares(3, [&](int) { EXPECT_EQ(std::this_thread::get_id(), own); });
    }
  };
  std::thread([] {
    static thread_local const Last last;
    [[maybe_unused]] const Last* const used = &last;
    run_loops(10, 3);
  }).join();
}

}  // namespace
}  // namespace tutti
