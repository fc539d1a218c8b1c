// Tests of what a new thread begins with: its generator and its number of compute threads
// (docs/embed.md).

#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/core/random.h>
#include <tutti/distributed/process_group.h>

#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>

namespace tutti {
namespace {

using Numbers = std::vector<double>;

Numbers draw_in_new_thread() {
  Numbers numbers;
  std::thread([&] { numbers = to_vector(rand({8})); }).join();
  return numbers;
}

// The tests seed the process, and leave behind the seed that it had.
class ThreadDefaults : public ::testing::Test {
 protected:
  ~ThreadDefaults() override { manual_seed(0); }
};

TEST_F(ThreadDefaults, EveryThreadDrawsNumbersOfItsOwn) {
  manual_seed(5);
  std::set<Numbers> all{to_vector(rand({8}))};
  for (int i = 0; i < 20; ++i) all.insert(draw_in_new_thread());
  EXPECT_EQ(all.size(), 21u);
}

TEST_F(ThreadDefaults, AlsoThreadsThatRunAtATime) {
  std::mutex mutex;
  std::set<Numbers> all;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i)
      threads.emplace_back([&] {
        const Numbers own = to_vector(rand({8}));
        const std::lock_guard lock(mutex);
        all.insert(own);
      });
  }
  EXPECT_EQ(all.size(), 8u);
}

TEST_F(ThreadDefaults, TheNumbersFollowFromTheSeedOfTheProcessAndTheNumberOfTheThread) {
  const auto two_threads = [](std::uint64_t seed) {
    manual_seed(seed);
    const Numbers first = draw_in_new_thread();
    return std::pair(first, draw_in_new_thread());
  };
  const auto five = two_threads(5);
  EXPECT_EQ(two_threads(5), five);
  const auto six = two_threads(6);
  EXPECT_NE(six.first, five.first);
  EXPECT_NE(six.second, five.second);
}

TEST_F(ThreadDefaults, TheSeedOfAnotherThreadIsItsOwn) {
  manual_seed(5);
  const Numbers before = draw_in_new_thread();
  manual_seed(5);
  const Numbers own = to_vector(rand({8}));
  std::thread([&] {
    manual_seed(5);
    EXPECT_EQ(to_vector(rand({8})), own);
    manual_seed(9);
  }).join();
  EXPECT_NE(draw_in_new_thread(), before) << "the second thread that draws has another number";
}

// As in ranks that are processes, so that replicas begin with the same weights.
TEST_F(ThreadDefaults, RanksBeginWithTheSameNumbersWhateverTheirCallerDrew) {
  Generator first(0);
  const Numbers expected = to_vector(rand({8}, {}, first));
  for (const std::uint64_t seed : {0u, 5u}) {
    manual_seed(seed);
    distributed::run_ranks(3,
                           [&](const ProcessGroup&) { EXPECT_EQ(to_vector(rand({8})), expected); });
  }
}

TEST_F(ThreadDefaults, ANewThreadComputesAloneUntilItAsksForMore) {
  const int before = num_threads();
  set_num_threads(4);
  std::thread([] {
    EXPECT_EQ(num_threads(), 1);
    set_num_threads(3);
    EXPECT_EQ(num_threads(), 3);
  }).join();
  EXPECT_EQ(num_threads(), 4);
  set_num_threads(before);
}

}  // namespace
}  // namespace tutti
