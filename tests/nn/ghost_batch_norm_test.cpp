// Tests of ghost batches: a layer on a batch in parts computes what a plain layer computes on one
// part after the other.
#include "distributed/messages.h"
#include "kernels/compare.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/gradcheck.h>
#include <tutti/autograd/recompute.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/ghost.h>
#include <tutti/nn/batch_norm/recompute_statistics.h>
#include <tutti/nn/batch_norm/report.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using nn::BatchNorm2d;
using nn::GhostBatchNorm;
using test::expect_contains;
using test::message_of;
using test::relative_error;

constexpr std::int64_t planes = 3;

BatchNorm2d::Options layer_options() {
  return {.channels = planes, .momentum = 0.3, .dtype = float64};
}

GhostBatchNorm ghost_layer(std::int64_t size) {
  return {std::make_shared<BatchNorm2d>(layer_options()), size};
}

Tensor values(std::int64_t samples, MemoryFormat format = MemoryFormat::contiguous) {
  return (randn({samples, planes, 4, 2}, {float64}) * 2 + 1).contiguous(format);
}

void set_parameters(nn::BatchNorm& layer) {
  layer.weight.detach().copy_(tensor({0.5, -2, 3}, {float64}));
  layer.bias.detach().copy_(tensor({1, 0, -1}, {float64}));
}

// A batch of 7 in parts of 3, 3 and 1 samples; one of 5 is one part.
struct GhostCase {
  std::int64_t samples, ghost;
  MemoryFormat format;
};

class GhostBatches : public ::testing::TestWithParam<GhostCase> {};
TEST_P(GhostBatches, AreThePlainLayerOnThePartsInOrder) {
  const GhostCase& of = GetParam();
  GhostBatchNorm ghost = ghost_layer(of.ghost);
  BatchNorm2d plain(layer_options());
  set_parameters(ghost.norm), set_parameters(plain);
  const Tensor x = values(of.samples, of.format), dy = values(of.samples, of.format);
  const Tensor own_x = x.clone().requires_grad_(), plain_x = x.clone().requires_grad_();
  const Tensor y = ghost(own_x);
  y.backward(dy, true);
  EXPECT_TRUE(y.is_contiguous(of.format));
  std::vector<Tensor> parts;
  std::int64_t updates = 0;
  for (std::int64_t begin = 0; begin < of.samples; begin += of.ghost, ++updates) {
    const std::int64_t end = std::min(begin + of.ghost, of.samples);
    parts.push_back(plain(plain_x.slice(0, begin, end)));
    parts.back().backward(dy.slice(0, begin, end));
  }
  EXPECT_LT(relative_error(y, cat(parts)), 1e-14);
  EXPECT_LT(relative_error(own_x.grad(), plain_x.grad()), 1e-13);
  EXPECT_LT(relative_error(ghost.norm.weight.grad(), plain.weight.grad()), 1e-13);
  EXPECT_LT(relative_error(ghost.norm.bias.grad(), plain.bias.grad()), 1e-13);
  EXPECT_LT(relative_error(ghost.norm.running_mean, plain.running_mean), 1e-14);
  EXPECT_LT(relative_error(ghost.norm.running_var, plain.running_var), 1e-14);
  EXPECT_EQ(ghost.norm.num_batches_tracked.item<std::int64_t>(), updates);
  y.backward(dy);
  EXPECT_LT(relative_error(own_x.grad(), plain_x.grad() * 2), 1e-13) << "a second backward";
  ghost.eval(), plain.eval();
  EXPECT_LT(relative_error(ghost(x), plain(x)), 1e-14) << "evaluation takes no parts";
}
// The last part of some batches is smaller, and one batch is a single part.
INSTANTIATE_TEST_SUITE_P(Batches, GhostBatches,
                         ::testing::Values(GhostCase{7, 3, MemoryFormat::contiguous},
                                           GhostCase{7, 3, MemoryFormat::channels_last},
                                           GhostCase{6, 3, MemoryFormat::contiguous},
                                           GhostCase{6, 1, MemoryFormat::channels_last},
                                           GhostCase{5, 8, MemoryFormat::contiguous}));

TEST(GhostBatchNorm, GradcheckAndNoSamples) {
  GhostBatchNorm layer = ghost_layer(2);
  EXPECT_TRUE(autograd::gradcheck([&](const auto& in) { return layer(in[0]); }, {values(5)}));
  const auto mean = to_vector(layer.norm.running_mean);
  const Tensor x = values(0).requires_grad_();
  layer(x).backward(values(0));
  EXPECT_EQ(to_vector(layer.norm.running_mean), mean);
}

TEST(GhostBatchNorm, RecomputationTakesTheStatisticsOfTheFirstRun) {
  GhostBatchNorm layer = ghost_layer(2), other = ghost_layer(2);
  const Tensor x = values(5), dy = values(5);
  const Tensor a = x.clone().requires_grad_(), b = x.clone().requires_grad_();
  recompute([&](const auto& in) { return layer(in[0]); }, {a}).backward(dy);
  other(b).backward(dy);
  EXPECT_EQ(to_vector(a.grad()), to_vector(b.grad()));
  EXPECT_EQ(to_vector(layer.norm.running_var), to_vector(other.norm.running_var));
}

TEST(GhostBatchNorm, RecomputedStatisticsPoolTheParts) {
  GhostBatchNorm layer = ghost_layer(2);
  BatchNorm2d plain(layer_options());
  const Tensor x = values(7);
  nn::recompute_statistics(layer, [&] { layer(x); });
  nn::recompute_statistics(plain, [&] { plain(x); });
  EXPECT_LT(relative_error(layer.norm.running_mean, plain.running_mean), 1e-13);
  EXPECT_LT(relative_error(layer.norm.running_var, plain.running_var), 1e-13);
}

TEST(GhostBatchNorm, AGroupOfRanksIsRefused) {
  GhostBatchNorm layer = ghost_layer(4);
  nn::convert_sync_batchnorm(layer, ProcessGroup());
  expect_contains(message_of<ValueError>([&] { layer(values(8)); }),
                  {"ghost batches of 4", "group", "choose one"});
  nn::revert_sync_batchnorm(layer);
  EXPECT_NO_THROW(layer(values(8)));
  EXPECT_THROW(ghost_layer(0), ValueError);
  EXPECT_NE(layer.to_string().find("size=4"), std::string::npos);
}

TEST(GhostBatchNorm, AReportCountsEveryPartOnce) {
  GhostBatchNorm layer = ghost_layer(4);
  const auto report = nn::batch_norm_report(layer, [&] {
    layer(randn({16, planes, 2, 2}, {float64}));
  });
  EXPECT_EQ(report.layers.at(0).values, std::vector<double>{64});
  EXPECT_EQ(report.layers[0].values_per_batch, 16);
}

TEST(GhostBatchNorm, RefusesALastPartWithoutVariance) {
  GhostBatchNorm layer(std::make_shared<nn::BatchNorm1d>(nn::BatchNorm1d::Options{.channels = 2}),
                       4);
  expect_contains(message_of<ShapeError>([&] {
                    layer(randn({9, 2}));
                  }),
                  {"(9, 2)", "1 value per channel", "drop the last samples"});
  EXPECT_EQ(layer.norm.num_batches_tracked.item<int>(), 0) << "nothing has changed";
  EXPECT_NO_THROW(layer(randn({10, 2})));
}

}  // namespace
}  // namespace tutti
