// Tests the plans of the persistent batch-norm kernels on described devices: an A100 and an H100.
// Which tensor gets a plan decides which kernels run, and what a plan says decides whether a launch
// fits and reads every vector once.
#include <tutti/kernels/cuda/batch_norm_persistent_plan.h>

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace tutti {
namespace {

using namespace kernels::cuda;

constexpr PersistentDevice a100{.multiprocessors = 108, .shared_bytes_per_block = 163 << 10},
    h100{.multiprocessors = 132, .shared_bytes_per_block = 227 << 10};
constexpr PersistentTensors small{.rows = 32 * 14 * 14, .channels = 256, .lanes = 8, .count = 2};

// Counts how often the launch visits every row, in any column, and every vector of a row.
void expect_every_vector_once(const PersistentTensors& of, const PersistentPlan& plan) {
  std::vector<int> rows(static_cast<std::size_t>(of.rows)),
      vectors(static_cast<std::size_t>(of.channels / of.lanes));
  for (int member = 0; member < plan.members; ++member)
    for (int y = 0; y * plan.across < row_threads; ++y) {
      const RowShare share = row_share(of.rows, y, plan.down, member, plan.members);
      ASSERT_LE(share.count, plan.depth) << "a thread has more vectors than it has room for";
      for (std::int64_t i = 0; i < share.count; ++i)
        ++rows.at(static_cast<std::size_t>(share.first + i * share.step));
    }
  for (int team = 0; team < plan.teams; ++team)
    for (int x = 0; x < plan.across; ++x)
      if (const auto at = static_cast<std::size_t>(team * plan.across + x); at < vectors.size())
        ++vectors[at];
  EXPECT_EQ(rows, std::vector<int>(rows.size(), 1));
  EXPECT_EQ(vectors, std::vector<int>(vectors.size(), 1));
}

// The parts of the block's shared memory, as batch_norm_persistent.cu lays them out.
void expect_that_it_fits(const PersistentTensors& of, const PersistentPlan& plan,
                         const PersistentDevice& device) {
  EXPECT_LE(plan.blocks(), static_cast<std::size_t>(device.multiprocessors));
  EXPECT_LE(plan.across * plan.down, row_threads);
  const int width = plan.across * of.lanes;
  ASSERT_LE(width, row_threads) << "the merge gives each channel of a slice at least one thread";
  const int merging_rows = (row_threads / width + 1) / 2;
  EXPECT_LE(3 * width * merging_rows, plan.scratch) << "merging the moments of the blocks";
  EXPECT_LE(2 * width * ((plan.down + 1) / 2), plan.scratch) << "the gradient sums of a block";
  const auto held = static_cast<std::size_t>(of.count) * static_cast<std::size_t>(plan.depth) *
                    row_threads * 16;
  const auto numbers = static_cast<std::size_t>(plan.scratch + persistent_fields * width);
  EXPECT_LE(held + sizeof(double) * numbers, plan.shared_bytes);
  EXPECT_LE(plan.shared_bytes, device.shared_bytes_per_block);
}

TEST(BatchNormPersistentPlan, VisitsEveryVectorOnceAndFitsOnTheDevice) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 generator(seed);
  const auto draw = [&](double low, double high) {  // evenly in the logarithm
    return static_cast<std::int64_t>(
        std::exp(std::uniform_real_distribution(std::log(low), std::log(high))(generator)));
  };
  int plans = 0;
  for (int trial = 0; trial < 1000 || plans < 300; ++trial) {
    ASSERT_LT(trial, 100000) << "too few shapes have a plan";
    PersistentTensors of{.lanes = 2 << (trial % 3), .count = 1 + trial / 3 % 2};
    of.rows = draw(1, 300000);
    of.channels = of.lanes * draw(1, 600);
    for (const PersistentDevice& device : {a100, h100}) {
      const PersistentPlan plan = persistent_plan(of, device);
      if (plan.teams == 0) continue;
      ++plans;
      SCOPED_TRACE(testing::Message()
                   << of.rows << " rows, " << of.channels << " channels, " << of.lanes << " lanes, "
                   << of.count << " tensors, " << device.multiprocessors << " multiprocessors");
      expect_every_vector_once(of, plan);
      expect_that_it_fits(of, plan, device);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(BatchNormPersistentPlan, IsForTensorsThatTheDeviceHoldsAtOnce) {
  for (const PersistentDevice& device : {a100, h100}) {
    // What 10 vectors of each of 512 threads hold on every multiprocessor, in slices of 8 vectors.
    PersistentTensors of{
        .rows = 64 * 10 * device.multiprocessors, .channels = 64, .lanes = 8, .count = 1};
    const PersistentPlan plan = persistent_plan(of, device);
    EXPECT_EQ(plan.teams, 1);
    EXPECT_EQ(plan.members, device.multiprocessors);
    EXPECT_EQ(plan.depth, 10);
    of.rows *= 3;
    EXPECT_EQ(persistent_plan(of, device).teams, 0) << "it would take several rounds";
    of.rows /= 3;
    of.channels *= 3;
    EXPECT_EQ(persistent_plan(of, device).teams, 0) << "it would take several rounds";
  }
}

TEST(BatchNormPersistentPlan, LeavesADeviceThatRunsCollectivesToStreamingKernels) {
  for (PersistentDevice device : {a100, h100}) {
    EXPECT_GT(persistent_plan(small, device).teams, 0);
    device.runs_collectives = true;
    EXPECT_EQ(persistent_plan(small, device).teams, 0);
  }
}

TEST(BatchNormPersistentPlan, LeavesADeviceThatDoesNotHoldABlockToStreamingKernels) {
  for (PersistentDevice device : {a100, h100}) {
    device.holds_block = false;
    EXPECT_EQ(persistent_plan(small, device).teams, 0);
    device.holds_block = true;
    device.shared_bytes_per_block = 32 << 10;
    EXPECT_EQ(persistent_plan(small, device).teams, 0);
  }
}

TEST(BatchNormPersistentPlan, NeedsRowsOfWholeVectors) {
  EXPECT_EQ(persistent_plan({.rows = 100, .channels = 60, .lanes = 8, .count = 1}, h100).teams, 0);
  EXPECT_EQ(persistent_plan({.rows = 0, .channels = 64, .lanes = 8, .count = 1}, h100).teams, 0);
}

}  // namespace
}  // namespace tutti
