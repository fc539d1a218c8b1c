// Tests of batch_norm_report(): made-up troubles are diagnosed, and a healthy model gives no
// warning.
#include "distributed/messages.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/nn/activation.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/recompute_statistics.h>
#include <tutti/nn/batch_norm/report/report.h>
#include <tutti/nn/conv.h>
#include <tutti/nn/sequential.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

using distributed::run_ranks;
using nn::batch_norm_report;
using nn::BatchNormReport;
using test::expect_contains;
using test::message_of;

constexpr std::int64_t channels = 4;
constexpr auto limit = std::chrono::seconds(60);

struct ReportedNet : nn::Sequential {
  nn::Conv2d& conv = append<nn::Conv2d>({.in = 3, .out = channels, .kernel = 3});
  nn::BatchNorm2d& first = append<nn::BatchNorm2d>({.channels = channels});
  nn::ReLU& relu = append<nn::ReLU>();
  nn::Conv2d& conv2 = append<nn::Conv2d>({.in = channels, .out = channels, .kernel = 3});
  nn::BatchNorm2d& last = append<nn::BatchNorm2d>({.channels = channels});
};

Tensor batch() { return randn({16, 3, 8, 8}); }

// Moves the running averages to where they stay.
void train(nn::Layer& net) {
  const NoGrad no_grad;
  for (int i = 0; i < 40; ++i) net(batch());
}

BatchNormReport report_of(nn::Layer& net, const ProcessGroup& group = {}) {
  return batch_norm_report(
      net,
      [&] {
        for (int i = 0; i < 4; ++i) net(batch());
      },
      group);
}

void expect_one_warning(const BatchNormReport& report, const std::vector<std::string>& words) {
  EXPECT_EQ(report.warnings.size(), 1u) << report.to_string();
  if (!report.warnings.empty()) expect_contains(report.warnings.front(), words);
}

TEST(BatchNormReport, AHealthyModelGivesNoWarningAndIsNotChanged) {
  ReportedNet net;
  train(net);
  net.eval();
  StateDict before;
  for (const auto& [name, tensor] : net.state_dict()) before.emplace_back(name, tensor.clone());
  const BatchNormReport report = report_of(net);
  EXPECT_TRUE(report.warnings.empty()) << report.to_string();
  expect_contains(report.to_string(), {"layer", "no warnings"});
  const StateDict after = net.state_dict();
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_EQ(to_vector(before[i].second), to_vector(after[i].second)) << before[i].first;
  EXPECT_FALSE(net.first.is_training());

  ASSERT_EQ(report.layers.size(), 2u);
  const BatchNormReport::Layer& layer = report.layers[1];
  EXPECT_EQ(layer.path, "4");
  EXPECT_EQ(layer.channels, channels);
  EXPECT_EQ(layer.values, std::vector<double>{4 * 16 * 4 * 4});
  EXPECT_EQ(layer.values_per_batch, 16 * 4 * 4);
  EXPECT_EQ(layer.updates, 40);
  EXPECT_DOUBLE_EQ(layer.memory, 10);
  EXPECT_DOUBLE_EQ(layer.initial_share, std::pow(0.9, 40));
  EXPECT_EQ(layer.rank_distance, std::vector<double>{0});
}

// The figures are those of the outputs: evaluation against training, on one batch.
TEST(BatchNormReport, TheErrorOfEvaluationIsThatOfTheOutputs) {
  nn::BatchNorm2d layer({.channels = channels, .eps = 1e-3, .affine = false, .dtype = float64});
  layer.running_mean.copy_(randn({channels}));
  layer.running_var.copy_(rand({channels}) + 0.5);
  const Tensor x = randn({5, channels, 6, 7}, {float64}) * 2 + 1;
  const BatchNormReport report = batch_norm_report(layer, [&] { layer(x); });
  layer.eval();
  const Tensor evaluated = layer(x);
  layer.train();
  const double error = std::sqrt(mean(square(layer(x) - evaluated)).item<double>());
  // The outputs have the variance var / (var + eps), which the figures take for 1.
  EXPECT_NEAR(report.layers.at(0).evaluation_error, error, 2e-3 * error);
  EXPECT_EQ(report.layers[0].path, "");
}

TEST(BatchNormReport, StaleRunningStatistics) {
  ReportedNet net;
  train(net);
  net.conv2.bias.detach().fill_(3);  // the weights change after the averages were taken
  const BatchNormReport report = report_of(net);
  EXPECT_LT(report.layers[0].evaluation_error, 0.25);
  EXPECT_GT(report.layers[1].mean_distance, 1);
  EXPECT_NEAR(report.layers[1].variance_ratio, 1, 0.5);
  expect_one_warning(report, {"in 1 of 2 layers, most in '4'", "last 10 of 40 updates",
                              "Statistics that are recomputed"});

  const auto run = [&] {
    for (int i = 0; i < 4; ++i) net(batch());
  };
  nn::recompute_statistics(net, run);
  EXPECT_TRUE(report_of(net).warnings.empty()) << report_of(net).to_string();
}

// 16 layers, the first `count` of which have running means that are off by `gap` standard
// deviations.
BatchNormReport report_of_a_deep_net(double gap, int count = 16) {
  nn::Sequential net;
  for (int i = 0; i < 16; ++i)
    net.append<nn::BatchNorm2d>({.channels = channels, .affine = false, .dtype = float64});
  const Tensor x = randn({16, channels, 8, 8}, {float64});
  const auto run = [&] { net(x); };
  nn::recompute_statistics(net, run);
  for (const auto& [name, tensor] : net.state_dict())
    if (name.ends_with("running_mean")) tensor.copy_(tensor + (count-- > 0 ? gap : 0));
    else if (name.ends_with("num_batches_tracked")) tensor.fill_(100);
  return batch_norm_report(net, run);
}

TEST(BatchNormReport, SmallErrorsOfManyLayersAddUp) {
  EXPECT_TRUE(report_of_a_deep_net(0.03).warnings.empty());
  EXPECT_TRUE(report_of_a_deep_net(0.2, 1).warnings.empty()) << "one layer is not many";
  const BatchNormReport report = report_of_a_deep_net(0.05);
  for (const auto& layer : report.layers) EXPECT_NEAR(layer.evaluation_error, 0.05, 0.01);
  expect_one_warning(report, {"a little in each of 16 layers", "adds up to 0.2",
                              "last 10 of 100 updates", "Statistics that are recomputed"});
}

TEST(BatchNormReport, AFloorOfTheVarianceIsNotAdded) {
  nn::BatchNorm2d layer(
      {.channels = 2, .eps = 0.5, .affine = false, .eps_is_floor = true, .dtype = float64});
  layer.running_var.copy_(tensor({0.01, 8}, {float64}));
  const Tensor x = randn({5, 2, 6, 7}, {float64}) * tensor({0.1, 2}, {2, 1, 1}, {float64});
  const BatchNormReport report = batch_norm_report(layer, [&] { layer(x); });
  layer.eval();
  const Tensor evaluated = layer(x).slice(1, 1, 2);
  layer.train();
  const double second = mean(square(layer(x).slice(1, 1, 2) - evaluated)).item<double>();
  const Tensor mean_of_first = mean(x.slice(1, 0, 1));
  const double first = square(mean_of_first).item<double>() / 0.5;  // both are below the floor
  EXPECT_NEAR(report.layers.at(0).evaluation_error, std::sqrt((first + second) / 2), 1e-9);
}

TEST(BatchNormReport, WithoutEpsAConstantChannelGivesNoNan) {
  nn::BatchNorm2d layer({.channels = 2, .eps = 0});
  const Tensor x = randn({4, 2, 3, 3});
  x.slice(1, 1, 2).fill_(3);
  const auto run = [&] { layer(x); };
  const BatchNormReport report = batch_norm_report(layer, run);
  EXPECT_EQ(report.layers.at(0).constant, std::vector<std::int64_t>{1});
  EXPECT_TRUE(std::isfinite(report.layers[0].evaluation_error));
  EXPECT_TRUE(std::isfinite(report.layers[0].rank_distance.at(0)));
  layer.running_var.zero_();
  EXPECT_EQ(batch_norm_report(layer, run).layers[0].evaluation_error, INFINITY);
}

TEST(BatchNormReport, RunningStatisticsThatAreStillTheInitialOnes) {
  ReportedNet net;
  expect_one_warning(report_of(net), {"in 2 of 2 layers", "seen no training batch"});
  net(batch());
  net(batch());
  const BatchNormReport report = report_of(net);
  EXPECT_DOUBLE_EQ(report.layers[0].initial_share, 0.81);
  expect_one_warning(report, {"After 2 updates", "81%", "let the layers forget faster"});
}

TEST(BatchNormReport, AnAverageOfAllBatchesRemembersEarlyWeights) {
  nn::BatchNorm2d layer({.channels = 3, .momentum = {}});
  for (int i = 0; i < 20; ++i) layer(batch() + 4);
  for (int i = 0; i < 20; ++i) layer(batch());
  const BatchNormReport report = report_of(layer);
  EXPECT_EQ(report.layers[0].memory, 40);
  expect_one_warning(report, {"weigh all 40 batches alike", "Set a momentum"});
}

TEST(BatchNormReport, ConstantSilentAndExplodedChannels) {
  ReportedNet net;
  const auto set = [](const Tensor& tensor, std::int64_t channel, double value) {
    tensor.detach().slice(0, channel, channel + 1).fill_(value);
  };
  set(net.conv.weight, 1, 0);
  set(net.first.weight, 2, 1e-7);
  set(net.conv2.weight, 3, 1e6);
  train(net);
  const BatchNormReport report = report_of(net);
  using Channels = std::vector<std::int64_t>;
  EXPECT_EQ(report.layers[0].constant, Channels{1});
  EXPECT_EQ(report.layers[0].silent, Channels{2});
  EXPECT_EQ(report.layers[0].exploded, Channels{});
  EXPECT_EQ(report.layers[1].constant, Channels{});
  EXPECT_EQ(report.layers[1].exploded, Channels{3});
  ASSERT_EQ(report.warnings.size(), 3u) << report.to_string();
  expect_contains(report.warnings[0], {"exploded", "'4' (1 of 4 channels: 3)"});
  expect_contains(report.warnings[1], {"constant", "'1' (1 of 4 channels: 1)"});
  expect_contains(report.warnings[2], {"silent", "'1' (1 of 4 channels: 2)", "weight decay"});

  set(net.conv2.weight, 3, NAN);
  EXPECT_EQ(report_of(net).layers[1].exploded, Channels{3}) << "not a number";
}

TEST(BatchNormReport, LayersThatSawNothingAndBatchesThatAreTooSmall) {
  ReportedNet net;
  train(net);
  net.first.freeze();
  const BatchNormReport unused = batch_norm_report(net, [] {});
  EXPECT_EQ(unused.layers.size(), 1u) << "a frozen layer is not part of the report";
  expect_one_warning(unused, {"No value reached 1 of 1 layers", "'4'"});

  nn::BatchNorm1d layer({.channels = 2});
  for (int i = 0; i < 40; ++i) layer(randn({512, 2}));
  const BatchNormReport small = batch_norm_report(layer, [&] {
    for (int i = 0; i < 200; ++i) layer(randn({4, 2}));
  });
  EXPECT_EQ(small.layers[0].values_per_batch, 4);
  expect_one_warning(small, {"noisy", "by 4.0 values", "larger batches"});
}

// Rank 2 sees other data than the other ranks. The report is the same on every rank, with a group
// and without one.
class BatchNormReportOnRanks : public ::testing::TestWithParam<bool> {};
TEST_P(BatchNormReportOnRanks, NamesTheRankWithStrangeData) {
  run_ranks(
      3,
      [&](const ProcessGroup& group) {
        manual_seed(7);
        ReportedNet net;
        if (GetParam()) nn::convert_sync_batchnorm(net, group);
        manual_seed(8 + static_cast<std::uint64_t>(group.rank()));
        const auto data = [&] { return group.rank() == 2 ? batch() * 3 + 2 : batch(); };
        for (int i = 0; i < 40; ++i) net(data());
        const BatchNormReport report = batch_norm_report(
            net,
            [&] {
              for (int i = 0; i < 4; ++i) net(data());
            },
            group);
        const BatchNormReport::Layer& layer = report.layers[0];
        EXPECT_EQ(layer.stray_ranks, std::vector<int>{2}) << report.to_string();
        EXPECT_EQ(layer.is_synchronized, GetParam());
        EXPECT_EQ(layer.values, std::vector<double>(3, 4 * 16 * 36));
        EXPECT_EQ(layer.values_per_batch, (GetParam() ? 3 : 1) * 16 * 36);
        EXPECT_GT(layer.rank_distance[2], 1.5 * layer.rank_distance[0]);
        const std::string all = report.to_string();
        expect_contains(all, {"other data than the rest", "rank 2", "Shuffle the samples"});
        EXPECT_EQ(all.find("Ranks keep different running means") == std::string::npos, GetParam());
        EXPECT_EQ(all.find("by SyncBatchNorm") == std::string::npos, GetParam());
      },
      limit);
}
INSTANTIATE_TEST_SUITE_P(Layers, BatchNormReportOnRanks, ::testing::Bool());

// Uneven ranks, one of which has nothing, are merged by counts.
TEST(BatchNormReport, OfUnevenRanksIsThatOfAllValues) {
  run_ranks(
      3,
      [](const ProcessGroup& group) {
        nn::BatchNorm2d layer({.channels = 2, .dtype = float64});
        const std::int64_t sizes[] = {3, 8, 0};
        const auto part = [&](int rank) {
          Generator random(static_cast<std::uint64_t>(rank + 1));
          return randn({sizes[rank], 2, 4, 4}, {float64}, random) + 0.1 * rank;
        };
        const Tensor all = cat({part(0), part(1)}).permute({1, 0, 2, 3}).reshape({2, -1});
        layer.running_mean.copy_(mean(all, {1}));
        layer.running_var.copy_(mean(square(all), {1}) - square(mean(all, {1})));
        const auto run = [&] {
          if (group.rank() < 2) layer(part(group.rank()));
        };
        const BatchNormReport report = batch_norm_report(layer, run, group);
        EXPECT_EQ(report.layers[0].values, (std::vector<double>{48, 128, 0}));
        EXPECT_LT(report.layers[0].evaluation_error, 1e-10);
        EXPECT_LT(report.layers[0].mean_distance, 1e-10);
        EXPECT_EQ(report.layers[0].rank_distance[2], 0);
        expect_contains(report.to_string(), {"1 of 3 ranks had no value"});
      },
      limit);
}

TEST(BatchNormReport, AFailedRunLeavesTheModelAsItWas) {
  ReportedNet net;
  net.eval();
  EXPECT_EQ(message_of<ValueError>(
                [&] { batch_norm_report(net, [&] { fail<ValueError>("no more data"); }); }),
            "no more data");
  EXPECT_FALSE(net.first.is_training());
  EXPECT_NO_THROW(net(batch()));
}

}  // namespace
}  // namespace tutti
