// Tests of recompute_statistics(): the statistics of all batches of all ranks, compared with those
// of one batch that holds every value.
#include "kernels/compare.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/nn/batch_norm/recompute_statistics.h>
#include <tutti/nn/dropout.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using namespace std::chrono_literals;
using distributed::run_ranks;
using test::relative_error;
using Paths = std::vector<std::string>;

constexpr std::int64_t maps = 3;

// Returns a batch whose mean differs from that of other batches, so that the variance between
// batches counts.
Tensor batch(int seed, std::int64_t samples) {
  Generator random(static_cast<std::uint64_t>(seed));
  return randn({samples, maps, 2, 2}, {float64}, random) * (1 + seed) + 10 * seed;
}

// Checks mean and unbiased variance of a layer against all values of `batches`.
void expect_statistics_of(const nn::BatchNorm& layer, const std::vector<Tensor>& batches) {
  const Tensor all = cat(batches).permute({1, 0, 2, 3}).reshape({maps, -1});
  const Tensor mean = tutti::mean(all, {1}, true);
  const double n = static_cast<double>(all.size(1));
  EXPECT_LT(relative_error(layer.running_mean, mean.reshape({maps})), 1e-13);
  EXPECT_LT(relative_error(layer.running_var, sum(square(all - mean), {1}) * (1 / (n - 1))), 1e-13);
}

TEST(RecomputeStatistics, OfBatchesOfDifferentSizesAreThoseOfOneBatch) {
  nn::BatchNorm2d layer({.channels = maps, .dtype = float64});
  layer.eval();
  const std::vector<Tensor> batches{batch(1, 5), batch(2, 1), batch(3, 8)};
  EXPECT_EQ(nn::recompute_statistics(layer,
                                     [&] {
                                       for (const Tensor& x : batches) layer(x);
                                     }),
            Paths{""});
  expect_statistics_of(layer, batches);
  EXPECT_FALSE(layer.is_training());
  EXPECT_EQ(layer.num_batches_tracked.item<int>(), 0) << "only the statistics change";
}

// Each rank has other batches. With a group the layer pools all ranks' values in its forwards, in
// which rank 2 has empty batches. Without one, rank 2 runs nothing, and the ranks' statistics are
// merged at the end.
class RecomputeStatisticsOnRanks : public ::testing::TestWithParam<bool> {};
TEST_P(RecomputeStatisticsOnRanks, AreThoseOfAllValues) {
  const bool synchronized = GetParam();
  run_ranks(
      3,
      [&](const ProcessGroup& group) {
        nn::BatchNorm2d layer({.channels = maps, .dtype = float64});
        if (synchronized) layer.set_process_group(group);
        const std::int64_t sizes[] = {4, 7, 0};
        const auto run = [&] {
          if (group.rank() == 2 && !synchronized) return;
          for (const int round : {0, 1})
            layer(batch(1 + 3 * round + group.rank(), sizes[group.rank()]));
        };
        EXPECT_EQ(nn::recompute_statistics(layer, run, group), Paths{""});
        expect_statistics_of(layer, {batch(1, 4), batch(2, 7), batch(4, 4), batch(5, 7)});
      },
      60s);
}
INSTANTIATE_TEST_SUITE_P(Layers, RecomputeStatisticsOnRanks, ::testing::Bool());

TEST(RecomputeStatistics, TheGroupHasAllRanksThatShareStatistics) {
  run_ranks(
      2,
      [](const ProcessGroup& group) {
        nn::BatchNorm2d layer({.channels = maps});
        layer.set_process_group(group);
        const auto run = [] { ADD_FAILURE() << "a batch ran"; };
        EXPECT_THROW(nn::recompute_statistics(layer, run, group.split(group.rank())), ValueError);
        EXPECT_TRUE(layer.is_training());
      },
      60s);
}

struct FrozenNet : nn::Layer {
  nn::Dropout& dropout = add<nn::Dropout>("dropout");
  nn::BatchNorm2d& layer = add<nn::BatchNorm2d>("layer", {.channels = maps, .dtype = float64});
  nn::BatchNorm2d& frozen = add<nn::BatchNorm2d>("frozen", {.channels = maps});
  nn::BatchNorm2d& unused = add<nn::BatchNorm2d>("unused", {.channels = maps});
  Tensor forward(const Tensor& x) override { return frozen(layer(dropout(x))); }
};

// Dropout stays off, as in evaluation. Layers that are frozen or see nothing keep their statistics.
TEST(RecomputeStatistics, LeaveOtherModulesAlone) {
  FrozenNet net;
  net.frozen.freeze();
  net.unused.running_mean.fill_(3);
  net.eval();
  const Tensor x = batch(2, 6);
  EXPECT_EQ(nn::recompute_statistics(net, [&] { net(x); }), Paths{"layer"});
  expect_statistics_of(net.layer, {x});
  EXPECT_EQ(to_vector(net.frozen.running_mean), std::vector<double>(maps, 0));
  EXPECT_EQ(to_vector(net.unused.running_mean), std::vector<double>(maps, 3));
}

TEST(RecomputeStatistics, AFailedRunChangesNothing) {
  nn::BatchNorm2d layer({.channels = maps});
  layer.eval();
  EXPECT_THROW(nn::recompute_statistics(layer,
                                        [&] {
                                          layer(batch(1, 4).to(float32));
                                          throw std::runtime_error("no more data");
                                        }),
               std::runtime_error);
  EXPECT_EQ(to_vector(layer.running_mean), std::vector<double>(maps, 0));
  EXPECT_EQ(to_vector(layer.running_var), std::vector<double>(maps, 1));
  EXPECT_FALSE(layer.is_training());
}

// After training on batches whose statistics drift, evaluation with running averages is off, and
// with recomputed statistics it is not.
TEST(RecomputeStatistics, CloseTheGapBetweenTrainingAndEvaluation) {
  nn::BatchNorm2d layer({.channels = maps, .dtype = float64});
  const Tensor x = batch(4, 64);
  const auto gap = [&] {
    const NoGrad no_grad;
    layer.eval();
    const Tensor y = layer(x);
    return std::abs(mean(y).item<double>()) + std::abs(mean(square(y)).item<double>() - 1);
  };
  layer(x);
  EXPECT_GT(gap(), 1);
  nn::recompute_statistics(layer, [&] { layer(x); });
  EXPECT_LT(gap(), 0.01);
}

}  // namespace
}  // namespace tutti
