// Tests the race detector: it is silent where something orders the threads, and names both accesses
// where nothing does.
#include "race_detector.h"

#include "buffer.h"
#include "emulator_test.h"

#include <numeric>

namespace emulator_test {
namespace {

TEST(Races, KernelsThatSynchroniseHaveNone) {
  ASSERT_TRUE(emulator::RaceDetector::is_on()) << "the kernels must be instrumented";
  std::vector<float> x(1000);
  std::iota(x.begin(), x.end(), 1.0f);
  const Buffer<float> in(x), partial(7), result(1), of_blocks(8);
  const Buffer<unsigned> counter(std::vector<unsigned>{0});
  for (int repeat = 0; repeat < 3; ++repeat) {
    launch_sum({.blocks = 7, .threads = 96}, in.get(), 1000, partial.get(), counter.get(),
               result.get());
    launch_block_numbers({.blocks = 8, .threads = 48, .shared_bytes = 64}, of_blocks.get());
  }
  EXPECT_EQ(result.values()[0], 500500.0f);
}

TEST(Races, ABarrierOfABlockOrdersItsThreads) {
  const Buffer<int> x(std::vector<int>(128, 0));
  launch_reverse(x.get(), true);
  cudaDeviceSynchronize();
  EXPECT_DEATH(
      launch_reverse(x.get(), false),
      "data race in shared memory(.|\n)*thread .* of block \\(0, 0, 0\\) (writes|reads) at "
      "emulator_test.cu:[0-9]+ in .*reverse(.|\n)*in the kernel emulator_test.cu:");
}

TEST(Races, ElementsOf16BitsAreToldApart) {
  const Buffer<short> y(64);
  launch_neighbours(y.get(), 32, 0, false);
  cudaDeviceSynchronize();
  EXPECT_EQ(y.values()[31], 31);
  EXPECT_DEATH(launch_neighbours(y.get(), 33, 1, true), "data race in shared memory")
      << "two warps";
}

TEST(Races, SyncwarpOrdersAWarpAndAShuffleDoesNot) {
  const Buffer<short> y(64);
  launch_neighbours(y.get(), 31, 1, true);
  cudaDeviceSynchronize();
  EXPECT_DEATH(launch_neighbours(y.get(), 31, 1, false), "data race in shared memory");
  EXPECT_DEATH(launch_neighbours_after_shuffle(y.get()), "data race in shared memory");
}

TEST(Races, FencesAroundAnAtomicOrderBlocks) {
  const Buffer<int> values(5 * 64), sum(1);
  const Buffer<unsigned> counter(std::vector<unsigned>{0});
  const auto launch = [&](Fences fences) {
    launch_hand_over(values.get(), counter.get(), sum.get(), fences);
    cudaDeviceSynchronize();
  };
  for (int repeat = 0; repeat < 3; ++repeat) launch({});
  EXPECT_EQ(sum.values()[0], 5 * 64);
  EXPECT_DEATH(launch({.before = false}), "data race in device memory(.|\n)*hand_over");
  EXPECT_DEATH(launch({.barrier = false}), "data race in device memory(.|\n)*hand_over");
  EXPECT_DEATH(launch({.after = false}), "data race in device memory(.|\n)*hand_over");
}

TEST(Races, AtomicsRaceWithOtherAccesses) {
  const Buffer<int> sum(std::vector<int>{0});
  launch_add_atomically(sum.get(), true);
  EXPECT_EQ(sum.values()[0], 256);
  EXPECT_DEATH(
      {
        launch_add_atomically(sum.get(), false);
        cudaDeviceSynchronize();
      },
      "data race in device memory(.|\n)*atomically writes");
}

TEST(Races, NothingOrdersTheBlocksOfALaunch) {
  const Buffer<int> values(5);
  EXPECT_DEATH(
      {
        launch_read_other_blocks(values.get());
        cudaDeviceSynchronize();
      },
      "data race in device memory");
}

}  // namespace
}  // namespace emulator_test
