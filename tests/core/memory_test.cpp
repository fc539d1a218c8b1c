// Tests that the CPU allocator reuses blocks, counts them, and serves several threads.
#include "address_space.h"
#include "distributed/process.h"
#include "which_sanitizer.h"

#include <tutti/core/create.h>

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

namespace tutti {
namespace {

Allocator& cpu() { return allocator(Device::cpu()); }

// Makes tensors of many sizes, some of which live longer than others, as in a training step.
void step() {
  std::vector<Tensor> kept;
  for (std::int64_t n = 1; n < 3'000'000; n = n * 3 + 7) {
    kept.push_back(empty({n}));
    const Tensor passing = empty({n / 2 + 1}, {float64});
  }
}

TEST(CpuAllocator, ASecondIdenticalStepAsksTheSystemForNothing) {
  step();
  const auto before = cpu().stats();
  step();
  const auto after = cpu().stats();
  EXPECT_EQ(after.system_allocations, before.system_allocations);
  EXPECT_EQ(after.live, before.live);
  EXPECT_EQ(after.cached, before.cached);
}

TEST(CpuAllocator, CountsLiveAndPeakAndTrims) {
  const auto before = cpu().stats();
  {
    const Tensor x = empty({1 << 20});
    const auto during = cpu().stats();
    EXPECT_GE(during.live, before.live + (4u << 20));
    EXPECT_GE(during.peak, during.live);
  }
  EXPECT_EQ(cpu().stats().live, before.live);
  cpu().reset_peak();
  EXPECT_EQ(cpu().stats().peak, before.live);
  EXPECT_GE(cpu().stats().cached, 4u << 20);
  cpu().trim();
  EXPECT_EQ(cpu().stats().cached, 0u);
}

TEST(CpuAllocator, AGiantBlockThatNobodyNeedsAgainGoesBackToTheSystem) {
  cpu().trim();
  const auto before = cpu().stats();
  constexpr std::size_t giant = std::size_t{96} << 20, usual = std::size_t{32} << 20;
  const auto use = [](std::size_t bytes) { empty({static_cast<std::int64_t>(bytes)}, {uint8}); };
  use(giant);
  const auto steps_until_returned = [&](std::int64_t most) {
    std::int64_t steps = 0;
    for (; steps < most && cpu().stats().cached >= before.cached + giant; ++steps) use(usual);
    return steps;
  };
  // As long as the giant block is used now and then, it stays; the usual one always does.
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(steps_until_returned(20), 20);
    use(giant);
  }
  const std::int64_t most = 40 * static_cast<std::int64_t>((before.live + giant + usual) / usual);
  EXPECT_LT(steps_until_returned(most), most);
  EXPECT_GE(cpu().stats().cached, before.cached + usual);
  EXPECT_EQ(cpu().stats().system_allocations, before.system_allocations + 1);  // for the giant one
}

TEST(CpuAllocator, BlocksOfOtherSizesShareTheirMemory) {
  cpu().trim();
  empty({40 << 20}, {uint8});
  const auto before = cpu().stats();
  std::vector<Tensor> parts;
  for (int i = 0; i < 3; ++i) parts.push_back(empty({12 << 20}, {uint8}));
  EXPECT_EQ(cpu().stats().system_allocations, before.system_allocations);
  EXPECT_EQ(cpu().stats().live + cpu().stats().cached, before.live + before.cached);
}

TEST(CpuAllocator, SmallBlocksDoNotDriveOutLargeOnesInUse) {
  cpu().trim();
  std::vector<Tensor> small;
  for (int i = 0; i < 200; ++i) small.push_back(empty({512 << 10}, {uint8}));
  small.clear();
  const auto use = [] { empty({16 << 20}, {uint8}); };
  use();
  const auto before = cpu().stats();
  for (int i = 0; i < 200; ++i) use();
  EXPECT_EQ(cpu().stats().system_allocations, before.system_allocations);
  EXPECT_EQ(cpu().stats().cached, before.cached);
  cpu().trim();
}

TEST(CpuAllocator, AlignsAndNeverHandsOutABlockTwice) {
  std::vector<void*> blocks;
  for (const std::size_t bytes : {1u, 63u, 64u, 65u, 513u, 5000u, 3u << 20}) {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(cpu().allocate(bytes));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back()) % 64, 0u);
    }
    std::vector<void*> sorted = blocks;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
    for (void* block : blocks) cpu().release(block, bytes);
    blocks.clear();
  }
}

TEST(CpuAllocator, SaysWhatIsLiveWhenThereIsNoneLeft) {
  try {
    cpu().allocate(std::size_t{1} << 60);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("out of memory on cpu: asked for"), std::string::npos)
        << error.what();
  }
}

// The test runs in a child process whose memory is limited to little more than it has, and whose
// cache is full of blocks that are too small.
TEST(CpuAllocator, GivesItsCacheBackBeforeItFails) {
  if (*test::no_memory_limit()) GTEST_SKIP() << test::no_memory_limit();
  const auto fill_and_ask = [] {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    constexpr std::size_t most = std::size_t{1} << 30, block = most / 16;
    const rlim_t limit = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + most;
    const rlimit limits{limit, limit};
    if (setrlimit(RLIMIT_AS, &limits) != 0) _exit(2);
    std::vector<void*> blocks;
    try {
      for (;;) blocks.push_back(cpu().allocate(block));
    } catch (const Error&) {}
    for (std::size_t i = 0; i < blocks.size(); i += 2) cpu().release(blocks[i], block);
    // With an empty cache the test would show nothing.
    if (cpu().stats().cached < 4 * block) _exit(3);
    cpu().release(cpu().allocate(3 * block), 3 * block);
    _exit(0);
  };
  EXPECT_EXIT(fill_and_ask(), ::testing::ExitedWithCode(0), "");
}

TEST(CpuAllocator, ServesSeveralThreads) {
  const auto before = cpu().stats().live;
  std::vector<std::thread> threads;
  std::atomic<int> torn{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t, &torn] {
      for (int i = 0; i < 300; ++i) {
        // One in four is a large block, of which some elements are written.
        const std::int64_t step = i % 4 == 0 ? 5000 : 1;
        const Tensor x = empty({(1 + (i * 37 + t) % 500) * step}, {int64});
        auto* const data = x.data<std::int64_t>();
        for (std::int64_t k = 0; k < x.numel(); k += step) data[k] = t;
        const Tensor shared = x;  // changes the reference counts, too
        for (std::int64_t k = 0; k < x.numel(); k += step) torn += data[k] != t;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(cpu().stats().live, before);
}

// A thread holds the allocator's mutex at most times, and no thread of the child would unlock it.
TEST(CpuAllocator, TheChildOfAForkCanAllocateWhileThreadsDo) {
  if (test::under_address_sanitizer)
    GTEST_SKIP() << "AddressSanitizer does not unlock its allocator in the child of a fork";
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&stop] {
      while (!stop) empty({3 << 20}, {uint8}), empty({100}, {uint8});
    });
  for (int i = 0; i < 100 && !HasFailure(); ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);  // ends a child that hangs
      { const Tensor large = empty({3 << 20}, {uint8}), small = empty({100}, {uint8}); }
      _exit(0);
    }
    test::expect_exit(child, 0);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
}

TEST(StorageBlock, CountsVersions) {
  const Tensor x = zeros({2});
  const auto version = x.storage()->version();
  x.fill_(1);
  EXPECT_EQ(x.storage()->version(), version + 1);
  EXPECT_EQ(x.slice(0, 0, 1).storage()->version(), version + 1);
}

}  // namespace
}  // namespace tutti
