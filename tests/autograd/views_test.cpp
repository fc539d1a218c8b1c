// Tests of views and copies: what they share, in which dtype gradients come back, and what they
// refuse. tests/random compares their elements and gradients with plain loops.
#include "dtype_options.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>

#include <gtest/gtest.h>

#include <limits>

namespace tutti {
namespace {

TEST(ViewsShare, WritesThroughAViewAreSeenInTheWhole) {
  const Tensor x = zeros({2, 3});
  x.transpose(0, 1).slice(0, 1, 2).fill_(5);
  EXPECT_EQ(to_vector(x), (std::vector<double>{0, 5, 0, 0, 5, 0}));
  x.reshape({6}).select(0, 5).fill_(7);
  EXPECT_EQ(to_vector(x), (std::vector<double>{0, 5, 0, 0, 5, 7}));
  EXPECT_EQ(x.reshape({3, 2}).raw(), x.raw());
  // No view has this shape, so reshape() copies.
  EXPECT_NE(x.transpose(0, 1).reshape({6}).raw(), x.raw());
  EXPECT_NE(x.clone().raw(), x.raw());
  EXPECT_TRUE(x.contiguous().is_same(x));
}

TEST(ViewsCast, GradientsComeBackInTheDtypeOfTheInput) {
  for (const DType to : {float32, bfloat16, float16}) {
    const Tensor x = tensor({1, 2}, f64).requires_grad_();
    const Tensor y = x.to(to);
    EXPECT_EQ(y.dtype(), to);
    y.backward(tensor({3, 4}, {to}));
    EXPECT_EQ(x.grad().dtype(), float64);
    EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{3, 4}));
  }
  EXPECT_FALSE(tensor({1.5}).requires_grad_().to(int64).requires_grad());
  EXPECT_TRUE(tensor({1}).to(Device::cpu()).defined());
}

TEST(Views, SlicesWithStepsNearTheLargestInteger) {
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  const Tensor x = tensor({1, 2, 3, 4, 5, 6}, {3, 2}, f64).requires_grad_();
  for (const std::int64_t step : {huge, huge - 1, huge / 2 + 1}) {
    const Tensor row = x.slice(0, 1, huge, step);
    EXPECT_EQ(row.shape(), (Shape{1, 2}));
    EXPECT_EQ(to_vector(row), (std::vector<double>{3, 4}));
    x.set_grad({});
    row.backward(ones({1, 2}, f64));
    EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{0, 0, 1, 1, 0, 0}));
    EXPECT_EQ(x.slice(0, 3, 3, step).shape(), (Shape{0, 2}));
  }
  EXPECT_EQ(to_vector(x.slice(0, 0, 3, 2)), (std::vector<double>{1, 2, 5, 6}));
}

TEST(ViewsErrors, NameWhatDoesNotFit) {
  const Tensor x = zeros({2, 3});
  EXPECT_THROW(x.reshape({4}), ShapeError);
  EXPECT_THROW(x.reshape({-1, -1}), ShapeError);
  EXPECT_THROW(x.reshape({-1, 4}), ShapeError);
  EXPECT_THROW(x.reshape({-2, 3}), ShapeError);
  EXPECT_THROW(zeros({0}).reshape({-1, 0}), ShapeError);
  EXPECT_THROW(x.reshape({-1, std::int64_t{1} << 40, std::int64_t{1} << 40}), ShapeError);
  EXPECT_THROW(x.permute({0}), ShapeError);
  EXPECT_THROW(x.permute({0, 0}), ShapeError);
  EXPECT_THROW(x.transpose(0, 2), ShapeError);
  EXPECT_THROW(x.slice(0, 0, 1, 0), ValueError);
  EXPECT_THROW(x.select(0, 2), ShapeError);
  EXPECT_THROW(x.expand({3}), ShapeError);
  EXPECT_THROW(x.expand({4, 3}), ShapeError);
  EXPECT_THROW(x.expand({-1, 2, 3}), ShapeError);
  EXPECT_THROW(x.squeeze(2), ShapeError);
  EXPECT_THROW(x.unsqueeze(3), ShapeError);
  EXPECT_THROW(x.flatten(1, 0), ShapeError);
  EXPECT_THROW(x.copy_(zeros({3, 3})), ShapeError);
  EXPECT_THROW((void)x.to(Device::cuda()), DeviceError);
}

TEST(Views, SqueezeLeavesADimensionOfAnotherSize) {
  const Tensor x = randn({2, 1, 3});
  EXPECT_EQ(x.squeeze(0).shape(), x.shape());
  EXPECT_EQ(x.squeeze(1).shape(), Shape({2, 3}));
}

TEST(InPlace, RefusesWhatWouldLoseAGradient) {
  const Tensor leaf = zeros({2}).requires_grad_(), computed = leaf + 1;
  EXPECT_THROW(leaf.fill_(1), Error);
  EXPECT_THROW(computed.add_(ones({2})), Error);
  EXPECT_THROW(zeros({2}).add_(leaf), Error);
  EXPECT_THROW(zeros({2}).copy_(computed), Error);
  EXPECT_THROW(zeros({1}).expand({3}).mul_(2), ShapeError);
  const NoGrad no_grad;
  EXPECT_EQ(to_vector(leaf.fill_(1)), (std::vector<double>{1, 1}));
  EXPECT_THROW(computed.fill_(1), Error);
  EXPECT_EQ(to_vector(zeros({2}).add_(leaf, 3)), (std::vector<double>{3, 3}));
}

TEST(InPlace, RefusesAnotherDeviceAndNumbersThatDoNotFit) {
  // This memory only claims to be a device's, so nothing may read it.
  float host[2] = {1, 1};
  const Tensor elsewhere(std::make_shared<Storage>(host, sizeof host, Device::cuda(), nullptr), {2},
                         {1}, 0, float32);
  EXPECT_THROW(zeros({2}).add_(elsewhere), DeviceError);
  EXPECT_THROW(elsewhere.add_(zeros({2})), DeviceError);
  const Tensor whole = tensor({0, 1, 2, 3}, {int64});
  EXPECT_THROW(whole.mul_(0.5), DTypeError);
  EXPECT_EQ(to_vector(whole), (std::vector<double>{0, 1, 2, 3}));
  EXPECT_EQ(to_vector(whole.mul_(2)), (std::vector<double>{0, 2, 4, 6}));
}

TEST(InPlace, RefusesToReadWhatItHasChanged) {
  const Tensor t = arange(9, {float32}).reshape({3, 3}), upper = t.slice(0, 1, 3);
  const std::vector<double> before = to_vector(t);
  std::vector<float> memory(9);
  const auto expect_refusal = [](const auto& change) { EXPECT_THROW(change(), ValueError); };
  expect_refusal([&] { t.add_(t.transpose(0, 1)); });
  expect_refusal([&] { t.copy_(t.transpose(0, 1)); });
  expect_refusal([&] { upper.add_(t.slice(0, 0, 2)); });
  expect_refusal([&] { t.slice(1, 1, 3).copy_(t.slice(1, 0, 2)); });
  expect_refusal([&] { t.add_(t[0]); });
  expect_refusal([&] { t.copy_(t.slice(1, 0, 1)); });
  expect_refusal([&] { t += t[1]; });
  expect_refusal([&] { t *= t.transpose(0, 1); });
  expect_refusal([&] { t[1] -= t.slice(1, 1, 2).squeeze(1); });
  expect_refusal([&] { t.set_grad(t.transpose(0, 1)); });
  expect_refusal([&] {  // two storages of one memory
    from_blob(memory.data(), {8}, float32).copy_(from_blob(memory.data() + 1, {8}, float32));
  });
  EXPECT_EQ(to_vector(t), before);
  try {
    t.add_(t.transpose(0, 1));
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_EQ(
        std::string(error.what()).find("add_: a tensor of shape (3, 3) is read in the memory"), 0u);
  }
}

TEST(InPlace, ReadsItselfInTheSameOrderAndItsOtherElements) {
  const Tensor t = arange(6, {float32}).reshape({2, 3});
  t.add_(t).copy_(t).copy_(t.reshape({1, 2, 3}).select(0, 0));
  EXPECT_EQ(to_vector(t), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  t.transpose(0, 1).add_(t.transpose(0, 1), -0.5);
  EXPECT_EQ(to_vector(t), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  t.slice(1, 0, 1).copy_(t.slice(1, 2, 3));  // columns lie between each other
  t.slice(1, 1, 2) += t.slice(1, 2, 3);
  EXPECT_EQ(to_vector(t), (std::vector<double>{2, 3, 2, 5, 9, 5}));
  t[0].copy_(t[1]);
  EXPECT_EQ(to_vector(t), (std::vector<double>{5, 9, 5, 5, 9, 5}));
  const Tensor even = arange(7, {float32});
  even.slice(0, 0, 6, 2).copy_(even.slice(0, 1, 7, 2));
  EXPECT_EQ(to_vector(even), (std::vector<double>{1, 1, 3, 3, 5, 5, 6}));
}

TEST(InPlace, OperatorsChangeTheTensorAndItsViews) {
  const Tensor x = tensor({1, 2, 3, 4}, {2, 2}, f64), same = x;
  x += tensor({10, 20}, f64);
  x -= 1;
  EXPECT_EQ(to_vector(same), (std::vector<double>{10, 21, 12, 23}));
  x *= x;
  x /= tensor({10, 1}, f64);
  x[1] /= 2;
  x[0] *= -1;
  EXPECT_EQ(to_vector(same), (std::vector<double>{-10, -441, 7.2, 264.5}));
  const Tensor bytes = tensor({250, 3}, {uint8});
  bytes += 10;
  bytes -= tensor({5}, {uint8});
  EXPECT_EQ(to_vector(bytes), (std::vector<double>{255, 8}));
  EXPECT_THROW(bytes /= 2, DTypeError);
  EXPECT_THROW(x += bytes, DTypeError);
  const Tensor leaf = ones({2}).requires_grad_(), loss = sum(leaf);
  EXPECT_THROW(leaf += 1, Error);
  EXPECT_THROW(loss += 1, Error);
  EXPECT_THROW(x[0] += leaf.to(float64), Error);
}

TEST(InPlace, AnAssignmentToAViewChangesItsElements) {
  const Tensor x = zeros({2, 2});
  x[0] = tensor({1, 2});
  x[1].slice(0, 0, 1) = 7;
  EXPECT_EQ(to_vector(x), (std::vector<double>{1, 2, 7, 0}));
  Tensor row = x[0];
  row = ones({2});  // another handle, as for every variable
  EXPECT_EQ(to_vector(x), (std::vector<double>{1, 2, 7, 0}));
  EXPECT_THROW(x[0] = ones({2}).requires_grad_(), Error);
}

TEST(InPlace, ConvertsBroadcastsAndBumpsTheVersion) {
  const Tensor x = zeros({2, 3});
  const auto before = x.storage()->version();
  x.copy_(tensor({1, 2, 3}, {int64})).add_(tensor({1}, f64).to(bfloat16), 0.5).mul_(2);
  EXPECT_EQ(to_vector(x), (std::vector<double>{3, 5, 7, 3, 5, 7}));
  EXPECT_EQ(x.storage()->version(), before + 3);
  // A tensor may be copied onto an overlapping part of itself only through a clone: the result here
  // is defined.
  EXPECT_EQ(to_vector(x.zero_()), std::vector<double>(6));
}

}  // namespace
}  // namespace tutti
