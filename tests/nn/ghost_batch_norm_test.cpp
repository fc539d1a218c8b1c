// Tests of ghost batches: a layer on a batch in parts computes what a plain layer computes on one
// part after the other.
#include "distributed/messages.h"
#include "kernels/compare.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/gradcheck.h>
#include <tutti/autograd/recompute.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/joint.h>
#include <tutti/nn/batch_norm/recompute_statistics.h>
#include <tutti/nn/batch_norm/report.h>
#include <tutti/nn/sequential.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using nn::BatchNorm2d;
using test::expect_contains;
using test::message_of;
using test::relative_error;

constexpr std::int64_t channels = 3;

BatchNorm2d::Options options(std::int64_t ghost = 0) {
  return {.channels = channels, .momentum = 0.3, .ghost_batch_size = ghost, .dtype = float64};
}

Tensor values(std::int64_t samples, MemoryFormat format = MemoryFormat::contiguous) {
  return (randn({samples, channels, 4, 2}, {float64}) * 2 + 1).contiguous(format);
}

void set_parameters(BatchNorm2d& layer) {
  layer.weight.detach().copy_(tensor({0.5, -2, 3}, {float64}));
  layer.bias.detach().copy_(tensor({1, 0, -1}, {float64}));
}

// A batch of 7 in parts of 3, 3 and 1 samples; one of 5 is one part.
struct Case {
  std::int64_t samples, ghost;
  bool residual, relu, weighted;
  MemoryFormat format;
};

class GhostBatchNorm : public ::testing::TestWithParam<Case> {};
TEST_P(GhostBatchNorm, IsThePlainLayerOnThePartsInOrder) {
  const Case& of = GetParam();
  BatchNorm2d ghost(options(of.ghost)), plain(options());
  for (BatchNorm2d* layer : {&ghost, &plain}) set_parameters(*layer);
  const Tensor x = values(of.samples, of.format), residual = values(of.samples, of.format),
               dy = values(of.samples, of.format),
               weights = rand({of.samples, 4, 2}, {float64}) + 0.5;
  const Tensor own_x = x.clone().requires_grad_(), own_residual = residual.clone().requires_grad_(),
               plain_x = x.clone().requires_grad_(),
               plain_residual = residual.clone().requires_grad_();
  const auto run = [&](BatchNorm2d& layer, const Tensor& in, const Tensor& added, std::int64_t from,
                       std::int64_t to) {
    const auto part = [&](const Tensor& t) { return t.slice(0, from, to); };
    return layer.forward(part(in), {.residual = of.residual ? part(added) : Tensor(),
                                    .relu = of.relu,
                                    .position_weights = of.weighted ? part(weights) : Tensor()});
  };
  const Tensor y = run(ghost, own_x, own_residual, 0, of.samples);
  y.backward(dy);
  EXPECT_TRUE(y.is_contiguous(of.format));
  std::vector<Tensor> parts;
  std::int64_t updates = 0;
  for (std::int64_t begin = 0; begin < of.samples; begin += of.ghost, ++updates) {
    const std::int64_t end = std::min(begin + of.ghost, of.samples);
    parts.push_back(run(plain, plain_x, plain_residual, begin, end));
    parts.back().backward(dy.slice(0, begin, end));
  }
  EXPECT_LT(relative_error(y, cat(parts)), 1e-14);
  EXPECT_LT(relative_error(own_x.grad(), plain_x.grad()), 1e-13);
  if (of.residual) {
    EXPECT_LT(relative_error(own_residual.grad(), plain_residual.grad()), 1e-14);
  }
  EXPECT_LT(relative_error(ghost.weight.grad(), plain.weight.grad()), 1e-13);
  EXPECT_LT(relative_error(ghost.bias.grad(), plain.bias.grad()), 1e-13);
  EXPECT_LT(relative_error(ghost.running_mean, plain.running_mean), 1e-14);
  EXPECT_LT(relative_error(ghost.running_var, plain.running_var), 1e-14);
  EXPECT_EQ(ghost.num_batches_tracked.item<std::int64_t>(), updates);
  ghost.eval(), plain.eval();
  EXPECT_LT(relative_error(ghost(x), plain(x)), 1e-14) << "evaluation takes no parts";
}
INSTANTIATE_TEST_SUITE_P(
    Batches, GhostBatchNorm,
    ::testing::Values(Case{7, 3, false, false, false, MemoryFormat::contiguous},
                      Case{7, 3, true, true, false, MemoryFormat::channels_last},
                      Case{6, 3, false, true, true, MemoryFormat::contiguous},
                      Case{6, 1, true, false, false, MemoryFormat::channels_last},
                      Case{5, 8, true, true, false, MemoryFormat::contiguous}));

TEST(GhostBatches, GradcheckAndNoSamples) {
  BatchNorm2d layer(options(2));
  EXPECT_TRUE(autograd::gradcheck([&](const auto& in) { return layer(in[0]); }, {values(5)}));
  const auto mean = to_vector(layer.running_mean);
  const Tensor x = values(0).requires_grad_();
  layer(x).backward(values(0));
  EXPECT_EQ(to_vector(layer.running_mean), mean);
}

TEST(GhostBatches, RecomputationTakesTheStatisticsOfTheFirstRun) {
  BatchNorm2d layer(options(2)), other(options(2));
  const Tensor x = values(5), dy = values(5);
  const Tensor a = x.clone().requires_grad_(), b = x.clone().requires_grad_();
  recompute([&](const auto& in) { return layer(in[0]); }, {a}).backward(dy);
  other(b).backward(dy);
  EXPECT_EQ(to_vector(a.grad()), to_vector(b.grad()));
  EXPECT_EQ(to_vector(layer.running_var), to_vector(other.running_var));
}

TEST(GhostBatches, RecomputedStatisticsPoolTheParts) {
  BatchNorm2d layer(options(2)), plain(options());
  const Tensor x = values(7);
  nn::recompute_statistics(layer, [&] { layer(x); });
  nn::recompute_statistics(plain, [&] { plain(x); });
  EXPECT_LT(relative_error(layer.running_mean, plain.running_mean), 1e-13);
  EXPECT_LT(relative_error(layer.running_var, plain.running_var), 1e-13);
}

TEST(GhostBatches, AGroupOfRanksIsRefused) {
  const ProcessGroup group;
  auto both = options(4);
  both.group = group;
  expect_contains(message_of<ValueError>([&] { BatchNorm2d layer(both); }),
                  {"ghost batches of 4", "group", "choose one"});
  EXPECT_THROW(BatchNorm2d(options(-1)), ValueError);
  BatchNorm2d layer(options(4));
  EXPECT_THROW(layer.set_process_group(group), ValueError);
  layer.set_ghost_batch_size(0);
  layer.set_process_group(group);
  EXPECT_THROW(layer.set_ghost_batch_size(4), ValueError);

  nn::Sequential net;
  auto& first = net.append<BatchNorm2d>(options());
  net.append<BatchNorm2d>(options(4));
  EXPECT_THROW(nn::convert_sync_batchnorm(net, group), ValueError);
  EXPECT_FALSE(first.process_group()) << "no layer was changed";
  EXPECT_NE(net.to_string().find("ghost_batch_size=4"), std::string::npos);
}

TEST(GhostBatches, RefusesPositionWeightsOfALaterPartBeforeAnythingHasChanged) {
  BatchNorm2d layer(options(2));
  const Tensor weights = ones({5, 4, 2}, {float64});
  weights.slice(0, 2, 4).zero_();
  weights.slice(0, 2, 3).slice(1, 0, 1).slice(2, 0, 1).fill_(1);
  expect_contains(
      message_of<ShapeError>([&] { layer.forward(values(5), {.position_weights = weights}); }),
      {"more than 1 value", "got 1"});
  EXPECT_EQ(layer.num_batches_tracked.item<int>(), 0);
  EXPECT_EQ(to_vector(layer.running_mean), std::vector<double>(channels, 0));
}

TEST(GhostBatches, AReportCountsEveryPartOnce) {
  BatchNorm2d layer({.channels = channels, .ghost_batch_size = 4});
  const auto report = nn::batch_norm_report(layer, [&] { layer(randn({16, channels, 2, 2})); });
  EXPECT_EQ(report.layers.at(0).values, std::vector<double>{64});
  EXPECT_EQ(report.layers[0].values_per_batch, 16);
}

TEST(GhostBatches, RefusesALastPartWithoutVariance) {
  nn::BatchNorm1d layer({.channels = 2, .ghost_batch_size = 4});
  expect_contains(message_of<ShapeError>([&] {
                    layer(randn({9, 2}));
                  }),
                  {"(9, 2)", "1 value per channel", "drop the last samples"});
  EXPECT_EQ(layer.num_batches_tracked.item<int>(), 0) << "nothing has changed";
  EXPECT_NO_THROW(layer(randn({10, 2})));
  nn::JointBatchNorm joint;
  expect_contains(message_of<ValueError>([&] {
                    joint.start(layer, randn({8, 2}));
                  }),
                  {"ghost batches", "forward()"});
}

}  // namespace
}  // namespace tutti
