// Join over ranks that are threads: the shared cases, layers that get an empty batch, and groups of
// statistics in which no rank has samples.
#include "join_case.h"

#include <tutti/nn/dropout.h>
#include <tutti/nn/layer_norm.h>

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;

class JoinRanks : public ::testing::TestWithParam<int> {};
TEST_P(JoinRanks, Works) { run_ranks(GetParam(), test::check_join, 60s); }
INSTANTIATE_TEST_SUITE_P(Ranks, JoinRanks, ::testing::Values(1, 2, 3, 4));

TEST(Join, RefusesANegativeNumber) {
  Join join{ProcessGroup()};
  EXPECT_THROW(static_cast<void>(join.step(-1)), ValueError);
}

// Whatever the number of ranks; the names are gathered for an error only.
TEST(Join, AStepCostsOneAllReduceOfTwoNumbers) {
  run_ranks(3, [](const ProcessGroup& group) {
    Join join(group);
    ASSERT_TRUE(join.step(group.rank()));
    EXPECT_EQ(group.traffic().calls, 1);
    EXPECT_EQ(group.traffic().bytes, 16);
    EXPECT_EQ(join.samples(), 3);
  });
}

TEST(Join, AnEmptyBatchGivesZerosEverywhereAndLeavesRunningStatisticsAlone) {
  nn::Sequential net;
  net.append<nn::Conv2d>({.in = 2, .out = 4, .kernel = 3, .padding = 1});
  auto& norm = net.append<nn::BatchNorm2d>({.channels = 4});
  net.append<nn::AvgPool2d>({.kernel = 2});
  net.append<nn::Dropout>();
  net.append<nn::AdaptiveAvgPool2d>({.output = 1});
  net.append<nn::Flatten>();
  net.append<nn::LayerNorm>({.shape = {4}});
  net.append<nn::Linear>({.in = 4, .out = 3});
  net(randn({4, 2, 6, 6}));
  const auto mean = to_vector(norm.running_mean), var = to_vector(norm.running_var);
  const Tensor loss = nn::cross_entropy(net(zeros({0, 2, 6, 6})), zeros({0}, {.dtype = int64}),
                                        {.reduction = nn::LossReduction::sum});
  loss.backward();
  EXPECT_EQ(loss.item<double>(), 0);
  for (const auto& [name, parameter] : net.named_parameters()) {
    ASSERT_TRUE(parameter.grad().defined()) << name;
    EXPECT_EQ(to_vector(parameter.grad()),
              std::vector<double>(static_cast<std::size_t>(parameter.numel()), 0))
        << name;
  }
  EXPECT_EQ(to_vector(norm.running_mean), mean);
  EXPECT_EQ(to_vector(norm.running_var), var);
}

// Ranks 2 and 3 share statistics, and have both run out.
TEST(Join, AGroupOfStatisticsWithoutAnySampleStaysFinite) {
  run_ranks(
      4,
      [](const ProcessGroup& world) {
        const auto net = test::small_net(world.split(world.rank() / 2));
        DataParallel ddp(net->named_parameters(), net->named_buffers(), world);
        Join join(world);
        const std::int64_t n = world.rank() < 2 ? 3 : 0;
        ASSERT_TRUE(join.step(n));
        const Tensor sum_of_losses =
            nn::cross_entropy((*net)(ones({n, 2, 6, 6}, {.dtype = float64})),
                              zeros({n}, {.dtype = int64}), {.reduction = nn::LossReduction::sum});
        (sum_of_losses * join.weight()).backward();
        for (const auto& [name, tensor] : net->named_parameters())
          for (const double value : to_vector(tensor.grad()))
            ASSERT_TRUE(std::isfinite(value)) << name;
        for (const auto& [name, tensor] : net->named_buffers())
          for (const double value : to_vector(tensor)) ASSERT_TRUE(std::isfinite(value)) << name;
      },
      60s);
}

}  // namespace
}  // namespace tutti
