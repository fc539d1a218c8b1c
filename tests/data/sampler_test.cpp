// Which samples form which batch on which rank.
#include <tutti/data/sampler.h>

#include "fixture.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

namespace tutti {
namespace {

using namespace data;
using namespace test;

// Returns the samples of an epoch in the order of batches and, in them, of ranks.
std::vector<std::int64_t> epoch_of_all_ranks(std::int64_t size, DistributedSampler::Options options,
                                             std::int64_t epoch) {
  std::vector<std::int64_t> all;
  const std::int64_t batches = DistributedSampler(size, options).batches();
  for (std::int64_t b = 0; b < batches; ++b)
    for (options.rank = 0; options.rank < options.ranks; ++options.rank) {
      const DistributedSampler sampler(size, options);
      const std::vector<std::int64_t> order = sampler.order(epoch);
      const auto [begin, end] = sampler.rank_range(b);
      all.insert(all.end(), order.begin() + begin, order.begin() + end);
    }
  return all;
}

TEST(DistributedSampler, ABatchMayBeLargerThanTheDataset) {
  const DistributedSampler sampler(
      10, {.batch_size = std::numeric_limits<std::int64_t>::max(), .shuffle = false});
  EXPECT_EQ(sampler.batches(), 1);
  EXPECT_EQ(sampler.global_range(0).end, 10);
  EXPECT_EQ(sampler.rank_range(0).end, 10);
}

TEST(DistributedSampler, EverySampleComesOnceInAnEpochOfAllRanks) {
  const std::uint64_t seed = fresh_seed();
  for (const std::int64_t size : {0, 1, 5, 64, 100})
    for (const int ranks : {1, 2, 3, 7}) {
      auto all = epoch_of_all_ranks(size, {.batch_size = 16, .seed = seed, .ranks = ranks}, 2);
      std::sort(all.begin(), all.end());
      std::vector<std::int64_t> expected(static_cast<std::size_t>(size));
      std::iota(expected.begin(), expected.end(), std::int64_t{0});
      EXPECT_EQ(all, expected) << size << " samples, " << ranks << " ranks";
    }
}

TEST(DistributedSampler, BatchesDoNotDependOnTheNumberOfRanks) {
  const std::uint64_t seed = fresh_seed();
  const auto one = epoch_of_all_ranks(100, {.batch_size = 12, .seed = seed}, 1);
  for (const int ranks : {2, 3, 5})
    EXPECT_EQ(epoch_of_all_ranks(100, {.batch_size = 12, .seed = seed, .ranks = ranks}, 1), one);
}

TEST(DistributedSampler, EpochsAndSeedsHaveOrdersOfTheirOwn) {
  const std::uint64_t seed = fresh_seed();
  const DistributedSampler a(1000, {.seed = seed}), b(1000, {.seed = seed + 1});
  EXPECT_EQ(a.order(3), DistributedSampler(1000, {.seed = seed}).order(3));
  EXPECT_NE(a.order(3), a.order(4));
  EXPECT_NE(a.order(3), b.order(3));
  const std::vector<std::int64_t> plain = DistributedSampler(4, {.shuffle = false}).order(9);
  EXPECT_EQ(plain, (std::vector<std::int64_t>{0, 1, 2, 3}));
}

TEST(DistributedSampler, KeepSplitsTheLastBatchUnevenly) {
  std::vector<std::int64_t> sizes;
  for (int rank = 0; rank < 4; ++rank) {
    const DistributedSampler sampler(10, {.batch_size = 8, .rank = rank, .ranks = 4});
    EXPECT_EQ(sampler.batches(), 2);
    const auto [begin, end] = sampler.rank_range(1);
    sizes.push_back(end - begin);
    const auto all = sampler.global_range(1);
    EXPECT_EQ(all.end - all.begin, 2);
  }
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{0, 1, 0, 1}));
}

TEST(DistributedSampler, PadRepeatsTheFirstSamplesUntilRanksAreEven) {
  const DistributedSampler::Options options{
      .batch_size = 6, .seed = fresh_seed(), .ranks = 3, .remainder = Remainder::pad};
  const std::vector<std::int64_t> all = epoch_of_all_ranks(10, options, 0);
  ASSERT_EQ(all.size(), 12u);
  EXPECT_EQ(all[10], all[0]);
  EXPECT_EQ(all[11], all[1]);
  EXPECT_EQ(std::set<std::int64_t>(all.begin(), all.end()).size(), 10u);
  // Fewer samples than ranks are repeated more than once.
  EXPECT_EQ(epoch_of_all_ranks(1, options, 0), (std::vector<std::int64_t>{0, 0, 0}));
}

TEST(DistributedSampler, DropLeavesFullBatchesOnly) {
  const DistributedSampler::Options options{
      .batch_size = 6, .seed = fresh_seed(), .ranks = 3, .remainder = Remainder::drop};
  const std::vector<std::int64_t> all = epoch_of_all_ranks(17, options, 0);
  EXPECT_EQ(all.size(), 12u);
  EXPECT_EQ(std::set<std::int64_t>(all.begin(), all.end()).size(), 12u);
}

TEST(DistributedSampler, DropAlsoTakesABatchThatTheRanksDoNotDivide) {
  const DistributedSampler::Options options{
      .batch_size = 5, .seed = fresh_seed(), .ranks = 3, .remainder = Remainder::drop};
  const std::vector<std::int64_t> all = epoch_of_all_ranks(17, options, 0);
  EXPECT_EQ(all.size(), 15u);
  EXPECT_EQ(std::set<std::int64_t>(all.begin(), all.end()).size(), 15u);
}

TEST(DistributedSampler, BadOptionsAreNamed) {
  EXPECT_THROW(DistributedSampler(-1, {}), ValueError);
  EXPECT_THROW(DistributedSampler(10, {.batch_size = 0}), ValueError);
  EXPECT_THROW(DistributedSampler(10, {.rank = 2, .ranks = 2}), ValueError);
  expect_error<ValueError>(
      [] { DistributedSampler(10, {.batch_size = 4, .ranks = 3, .remainder = Remainder::pad}); },
      {"4 samples", "3 ranks"});
  expect_error<ValueError>(
      [] { DistributedSampler(10, {.batch_size = 16, .remainder = Remainder::drop}); },
      {"10 samples", "16"});
  EXPECT_THROW(DistributedSampler(10, {.batch_size = 4}).rank_range(3), ValueError);
}

}  // namespace
}  // namespace tutti
