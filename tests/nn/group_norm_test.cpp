// Tests of group_norm, GroupNorm, InstanceNorm, and of BatchNorm layers that were converted to
// group normalisation. tests/random compares values and gradients with plain loops.
#include "distributed/messages.h"
#include "kernels/compare.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/record.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/recompute_statistics.h>
#include <tutti/nn/functional/group_norm.h>
#include <tutti/nn/group_norm.h>
#include <tutti/nn/instance_norm.h>
#include <tutti/nn/models/resnet.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

using test::expect_error;
using test::relative_error;

constexpr DType dtype = float64;

TEST(GroupNorm, KeepsTheDigitsOfFarAwayValues) {
  const Tensor x = randn({3, 8, 5, 5}), far = x + 4096;
  const Tensor expected = nn::group_norm((far - 4096).to(float64), 2);
  EXPECT_LT(relative_error(nn::group_norm(far, 2), expected), 1e-5);
  EXPECT_LT(relative_error(nn::group_norm(x.to(bfloat16), 2),
                           nn::group_norm(x.to(bfloat16).to(float64), 2)),
            4e-3);
}

// All parts of the gradient are large, and their sum is 0.
TEST(GroupNorm, RoundsSixteenBitInputGradientsOnce) {
  const Tensor x = arange(4, {bfloat16}).reshape({1, 1, 4}).requires_grad_();
  nn::group_norm(x, 1).backward(ones({1, 1, 4}, {bfloat16}));
  for (const double slope : to_vector(x.grad())) EXPECT_NEAR(slope, 0, 1e-6);

  const Tensor values = (randn({3, 8, 5, 5}) * 2 + 5).to(bfloat16),
               dy = (randn({3, 8, 5, 5}) + 3).to(bfloat16);
  const Tensor low = values.clone().requires_grad_(), high = values.to(dtype).requires_grad_();
  nn::group_norm(low, 2).backward(dy);
  nn::group_norm(high, 2).backward(dy.to(dtype));
  const auto got = to_vector(low.grad()), expected = to_vector(high.grad());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], 0x1p-8 * std::abs(expected[i]) + 1e-5) << i;
}

TEST(GroupNorm, DescribesItselfAndRefusesWrongArguments) {
  nn::GroupNorm layer({.groups = 2, .channels = 4});
  EXPECT_EQ(layer.describe(), "2, 4");
  EXPECT_EQ(nn::GroupNorm({.groups = 2, .channels = 4, .eps = 0.5, .affine = false}).describe(),
            "2, 4, eps=0.5, affine=false");
  layer.to(bfloat16);
  EXPECT_EQ(layer.weight.dtype(), float32);

  EXPECT_THROW(nn::GroupNorm({.groups = 3, .channels = 4}), ValueError);
  EXPECT_THROW(nn::GroupNorm({.groups = 0, .channels = 4}), ValueError);
  EXPECT_THROW(nn::GroupNorm({.groups = 1, .channels = 4, .eps = -1}), ValueError);
  EXPECT_THROW(nn::GroupNorm({.groups = 1, .channels = 4, .dtype = bfloat16}), DTypeError);
  expect_error<ShapeError>(
      [&] {
        layer(randn({2, 6, 3}));
      },
      {"GroupNorm", "(N, 4, ...)", "(2, 6, 3)"});
  EXPECT_THROW(nn::group_norm(randn({2, 4, 3}), 3), ValueError);
  for (const double eps : {-1.0, std::nan(""), double(INFINITY)})
    EXPECT_THROW(nn::group_norm(randn({2, 4, 3}), 2, {}, {}, eps), ValueError);
  EXPECT_THROW(nn::group_norm(randn({4}), 1), ShapeError);
  EXPECT_THROW(nn::group_norm(randn({2, 4, 3}), 2, ones({3})), ShapeError);
  EXPECT_THROW(nn::group_norm(ones({2, 4}, {int64}), 2), DTypeError);
}

TEST(GroupNorm, OutputAndGradientKeepTheMemoryFormat) {
  constexpr MemoryFormat last = MemoryFormat::channels_last;
  const Tensor leaf = randn({2, 4, 3, 3}).contiguous(last).requires_grad_();
  MemoryFormat arrived = MemoryFormat::contiguous;
  const Tensor x = autograd::record("witness", leaf.detach().clone(), {leaf}, [&](const Tensor& g) {
    arrived = g.memory_format();
    return g;
  });
  const Tensor y = nn::group_norm(x, 2);
  EXPECT_EQ(y.memory_format(), last);
  y.backward(randn(y.shape()).contiguous(last));
  EXPECT_EQ(arrived, last);
}

TEST(InstanceNorm, RefusesWrongArguments) {
  nn::InstanceNorm2d layer({.channels = 3, .affine = true, .dtype = dtype});
  expect_error<ShapeError>(
      [&] {
        layer(randn({2, 3, 1, 1}, {dtype}));
      },
      {"InstanceNorm2d", "more than 1 value", "(2, 3, 1, 1)"});
  EXPECT_THROW(layer(randn({2, 3, 4}, {dtype})), ShapeError);
  EXPECT_THROW(layer(randn({2, 4, 4, 4}, {dtype})), ShapeError);
  EXPECT_THROW(nn::InstanceNorm1d({.channels = 0}), ValueError);
  EXPECT_THROW(nn::InstanceNorm1d({.channels = 2, .momentum = 2}), ValueError);
}

TEST(InstanceNorm, AnEmptyBatchDoesNotMoveTheRunningStatistics) {
  nn::InstanceNorm1d layer({.channels = 2, .track_running_stats = true});
  layer(randn({3, 2, 5}));
  const auto mean = to_vector(layer.running_mean), var = to_vector(layer.running_var);
  EXPECT_EQ(layer(randn({0, 2, 5})).shape(), (Shape{0, 2, 5}));
  EXPECT_EQ(to_vector(layer.running_mean), mean);
  EXPECT_EQ(to_vector(layer.running_var), var);
}

// A converted layer computes what a GroupNorm does, in its place, with its residual and ReLU.
TEST(ConvertToGroupNorm, ALayerComputesWhatAGroupNormDoes) {
  nn::BatchNorm2d layer({.channels = 4, .eps = 1e-3, .dtype = dtype});
  nn::GroupNorm plain({.groups = 2, .channels = 4, .eps = 1e-3, .dtype = dtype});
  const Tensor weight = layer.weight;
  layer.weight.detach().copy_(randn({4}));
  EXPECT_EQ(nn::convert_batchnorm_to_groupnorm(layer, 2), std::vector<std::string>{""});
  plain.load_state_dict(layer.state_dict());
  const Tensor x = randn({3, 4, 5, 2}, {dtype}), residual = randn({3, 4, 5, 2}, {dtype});
  for (const bool training : {true, false}) {
    layer.train(training);
    EXPECT_EQ(to_vector(layer(x)), to_vector(plain(x)));
    EXPECT_EQ(to_vector(layer.forward(x, {.residual = residual, .relu = true})),
              to_vector(relu(plain(x) + residual)));
  }
  EXPECT_EQ(layer.weight.id(), weight.id()) << "an optimizer's handle stays valid";
  EXPECT_NE(layer.to_string().find("normalises by 2 groups"), std::string::npos);
  EXPECT_TRUE(nn::convert_batchnorm_to_groupnorm(layer, 2).empty());
  EXPECT_TRUE(nn::recompute_statistics(layer, [&] { layer(x); }).empty());
}

TEST(ConvertToGroupNorm, AResNetTrainsWithoutBatches) {
  const auto net = nn::resnet("resnet20", {.classes = 3});
  EXPECT_EQ(nn::convert_batchnorm_to_groupnorm(*net, 8).size(), 19u);
  for (const auto& [path, tensor] : net->state_dict())
    EXPECT_EQ(path.find("running"), std::string::npos) << path;
  const Tensor x = randn({3, 3, 8, 8});
  const Tensor y = (*net)(x);
  sum(square(y)).backward();
  for (const auto& [path, parameter] : net->named_parameters())
    EXPECT_TRUE(parameter.grad().defined()) << path;
  net->eval();
  EXPECT_LT(relative_error((*net)(x.slice(0, 1, 2)), y.slice(0, 1, 2)), 1e-5)
      << "a sample does not depend on the others";
}

TEST(ConvertToGroupNorm, RefusesLayersThatItCannotConvert) {
  nn::Sequential net;
  auto& first = net.append<nn::BatchNorm2d>({.channels = 8});
  auto& second = net.append<nn::BatchNorm2d>({.channels = 6});
  expect_error<ValueError>([&] { nn::convert_batchnorm_to_groupnorm(net, 4); },
                           {"BatchNorm '1'", "divide 6 channels", "got 4"});
  EXPECT_EQ(first.channel_groups(), 0) << "nothing has changed";
  second.set_process_group(ProcessGroup());
  EXPECT_THROW(nn::convert_batchnorm_to_groupnorm(net, 2), ValueError);
  const auto is_first = [](const std::string& path, const nn::BatchNorm&) { return path == "0"; };
  EXPECT_EQ(nn::convert_batchnorm_to_groupnorm(net, 2, is_first), std::vector<std::string>{"0"});

  EXPECT_THROW(first.set_process_group(ProcessGroup()), ValueError);
  EXPECT_TRUE(nn::convert_sync_batchnorm(net, ProcessGroup()).empty());
  EXPECT_THROW(first.forward(randn({2, 8, 3, 3}), {.position_weights = ones({2})}), ValueError);
  EXPECT_THROW(first(randn({2, 8, 3})), ShapeError);
  nn::BatchNorm floor({.channels = 4, .eps_is_floor = true});
  EXPECT_THROW(floor.normalize_by_groups(2), ValueError);
}

}  // namespace
}  // namespace tutti
