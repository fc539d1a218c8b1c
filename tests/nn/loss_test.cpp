// Tests of losses and dropout as functions: numbers at the limits, dtypes, memory,
// errors. tests/random compares values and gradients with plain loops.
#include "distributed/messages.h"
#include "dtype_options.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/nn/functional/dropout.h>
#include <tutti/nn/functional/interpolate.h>
#include <tutti/nn/functional/loss.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

using nn::LossReduction;

Tensor random(const Shape& shape) {
  static Generator generator(29);
  return randn(shape, f64, generator);
}

TEST(CrossEntropy, AnIgnoredPositionHasNoLossAndNoGradientEvenIfItIsNan) {
  const Tensor x = tensor({1, 2, NAN, 3}, {2, 2}, f64).requires_grad_();
  const Tensor targets = tensor({0, -100}, {.dtype = int64}), weight = tensor({2, 3}, f64);
  for (const double s : {0.0, 0.2}) {
    x.set_grad({});
    const Tensor loss = nn::cross_entropy(x, targets, {.label_smoothing = s, .weight = weight});
    EXPECT_TRUE(std::isfinite(loss.item<double>()));
    loss.backward();
    const auto gradient = to_vector(x.grad());
    EXPECT_NE(gradient[0], 0);
    EXPECT_EQ(gradient[2], 0);
    EXPECT_EQ(gradient[3], 0);
  }
}

TEST(CrossEntropy, TakesFloat32ProbabilitiesWithSixteenBitLogits) {
  const Tensor x = random({8, 5}).to(bfloat16).requires_grad_(),
               p = softmax(random({8, 5}).to(float32), 1);
  const Tensor loss = nn::cross_entropy(x, p, {.label_smoothing = 0.1});
  EXPECT_EQ(loss.dtype(), float32);
  EXPECT_NEAR(loss.item<double>(),
              nn::cross_entropy(x.detach().to(float64), p.to(float64), {.label_smoothing = 0.1})
                  .item<double>(),
              1e-6);
  loss.backward();
  EXPECT_EQ(x.grad().dtype(), bfloat16);
}

TEST(CrossEntropy, LargeLogitsAndLowPrecision) {
  const Tensor targets = tensor({0, 1}, {.dtype = int64});
  const Tensor x = tensor({1e4, 1e4 - 3, 2e4, -2e4}, {2, 2});
  const auto losses = to_vector(nn::cross_entropy(x, targets, {.reduction = LossReduction::none}));
  EXPECT_NEAR(losses[0], std::log1p(std::exp(-3.0)), 1e-7);
  EXPECT_EQ(losses[1], 4e4);
  const Tensor low = random({8, 5}).to(bfloat16).requires_grad_();
  const Tensor labels = tensor({0, 1, 2, 3, 4, 0, 1, 2}, {.dtype = int64});
  const Tensor loss = nn::cross_entropy(low, labels);
  EXPECT_EQ(loss.dtype(), float32);
  EXPECT_NEAR(loss.item<double>(),
              nn::cross_entropy(low.detach().to(float64), labels).item<double>(), 1e-6);
  loss.backward();
  EXPECT_EQ(low.grad().dtype(), bfloat16);
}

TEST(CrossEntropy, Errors) {
  const Tensor x = zeros({2, 3}), t = zeros({2}, {.dtype = int64});
  EXPECT_THROW(nn::cross_entropy(x, zeros({2})), DTypeError);
  EXPECT_THROW(nn::cross_entropy(x, zeros({3}, {.dtype = int64})), ShapeError);
  EXPECT_THROW(nn::cross_entropy(zeros({3}), t), ShapeError);
  EXPECT_THROW(nn::cross_entropy(zeros({2, 0}), t), ShapeError);
  EXPECT_THROW(nn::cross_entropy(x, t + 3), ValueError);
  EXPECT_THROW(nn::cross_entropy(x, t - 1), ValueError);
  EXPECT_THROW(nn::cross_entropy(x, t, {.label_smoothing = 1.5}), ValueError);
  EXPECT_THROW(nn::cross_entropy(x, t, {.weight = ones({2})}), ShapeError);
  EXPECT_THROW(nn::cross_entropy(x, t, {.weight = ones({3}, f64)}), DTypeError);
  EXPECT_THROW(nn::cross_entropy(x, t + 3, {.weight = ones({3})}), ValueError);
  EXPECT_THROW(nn::cross_entropy(x, zeros({2, 4})), ShapeError);
  EXPECT_THROW(nn::cross_entropy(x, zeros({2, 3}, f64)), DTypeError);
  EXPECT_THROW(nn::cross_entropy(x, zeros({2, 3}, {.dtype = uint8})), DTypeError);
  EXPECT_THROW(nn::cross_entropy(x, zeros({2, 3}), {.ignore_index = 0}), ValueError);
}

// Runs `step` and returns the most bytes that it held at a time beyond those that were live before.
// The allocator knows only the highest number of the whole process, up to which memory is filled.
std::size_t peak_of(const std::function<void()>& step) {
  const auto stats = [] { return allocator(Device::cpu()).stats(); };
  const std::size_t gap = stats().peak - stats().live;
  const Tensor filler = empty({static_cast<std::int64_t>(gap)}, {uint8});
  const std::size_t before = stats().live;
  step();
  return stats().peak - before;
}

// PyTorch says IndexError. Neither memory outside is touched, nor is a gradient wrong in silence.
TEST(CrossEntropy, TargetsThatHaveChangedBeforeBackwardAreChecked) {
  for (const std::int64_t classes : {3, 300})  // by tiles, and position by position
    for (const std::int64_t outside :
         {classes, std::int64_t{5000}, std::int64_t{-1}, std::int64_t{1000000000}}) {
      const Tensor y = tensor({0, 1}, {.dtype = int64}), x = random({2, classes}).requires_grad_();
      const Tensor loss = nn::cross_entropy(x, y);
      y.data<std::int64_t>()[0] = outside;
      const std::string text = test::message_of<ValueError>([&] { loss.backward(); });
      EXPECT_NE(text.find("expected targets from 0 to"), std::string::npos) << text;
      EXPECT_FALSE(x.grad().defined());
    }
}

TEST(CrossEntropy, OfUpsampledLogitsHoldsTheLargeOnesOnce) {
  const Shape shape{2, 21, 192, 192};
  const std::size_t large = static_cast<std::size_t>(numel(shape)) * sizeof(float);
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = randn({2, 21, 24, 24}).contiguous(format).requires_grad_(),
                 targets = randint(21, {2, 192, 192}, {int64});
    const auto upsampled = [&] {
      return nn::interpolate(x, {.scale_factor = {8}, .mode = nn::InterpolateMode::bilinear});
    };
    const std::size_t peak = peak_of([&] {
      const Tensor loss = nn::cross_entropy(upsampled(), targets);
      loss.backward();
    });
    EXPECT_GE(peak, large);
    EXPECT_LE(peak, large + large / 4) << to_string(format);  // and a few numbers per position

    // Logits that somebody can see, or that another backward needs, stay as they are.
    const std::vector<double> expected = to_vector(x.grad());
    x.set_grad({});
    const Tensor logits = upsampled();
    const std::vector<double> before = to_vector(logits);
    nn::cross_entropy(logits, targets).backward();
    EXPECT_EQ(to_vector(logits), before);
    EXPECT_EQ(to_vector(x.grad()), expected);
    const Tensor loss = nn::cross_entropy(upsampled(), targets);
    for (const bool retain_graph : {true, false}) {
      x.set_grad({});
      loss.backward({}, retain_graph);
      EXPECT_EQ(to_vector(x.grad()), expected) << retain_graph;
    }
  }
}

TEST(MseLoss, Errors) {
  const Tensor a = zeros({3}, f64);
  EXPECT_THROW(nn::mse_loss(a, zeros({1}, f64)), ShapeError);
  EXPECT_THROW(nn::mse_loss(a, zeros({3})), DTypeError);
}

TEST(BinaryCrossEntropy, LargeLogitsAndErrors) {
  const Tensor far = tensor({-200, 200}, f64);
  EXPECT_EQ(nn::binary_cross_entropy_with_logits(far, ones({2}, f64)).item<double>(), 100);
  const Tensor x = random({4, 3}), t = sigmoid(random({4, 3}));
  EXPECT_THROW(nn::binary_cross_entropy_with_logits(t, t.slice(0, 0, 2)), ShapeError);
  EXPECT_THROW(nn::binary_cross_entropy_with_logits(x, t.to(float32)), DTypeError);
  EXPECT_THROW(nn::binary_cross_entropy_with_logits(x, t, {.pos_weight = ones({4}, f64)}),
               ShapeError);
}

TEST(Dropout, KeepsTheExpectationAndTheMask) {
  Generator generator(5);
  const Tensor x = ones({100, 100}).requires_grad_();
  const Tensor y = nn::dropout(x, 0.25, true, generator);
  double kept = 0;
  for (const double v : to_vector(y)) {
    EXPECT_TRUE(v == 0 || std::abs(v - 4.0 / 3) < 1e-6) << v;
    kept += v != 0;
  }
  EXPECT_NEAR(kept / 1e4, 0.75, 4 * std::sqrt(0.75 * 0.25 / 1e4));
  sum(y).backward();
  EXPECT_EQ(to_vector(x.grad()), to_vector(y));
  Generator again(5);
  EXPECT_EQ(to_vector(nn::dropout(x, 0.25, true, again)), to_vector(y));
  EXPECT_EQ(generator.state(), again.state());
}

TEST(Dropout, EdgesAndErrors) {
  const Tensor x = ones({3});
  EXPECT_TRUE(nn::dropout(x, 0.5, false).is_same(x));
  EXPECT_TRUE(nn::dropout(x, 0, true).is_same(x));
  EXPECT_EQ(to_vector(nn::dropout(x, 1, true)), (std::vector<double>{0, 0, 0}));
  EXPECT_THROW(nn::dropout(x, -0.1, true), ValueError);
  EXPECT_THROW(nn::dropout(x, std::nan(""), true), ValueError);
  // Random numbers are drawn in the order of the indices, not in the order of the memory.
  Generator a(1), b(1);
  const Tensor image = ones({2, 3, 4, 4});
  const Tensor last = nn::dropout(image.contiguous(MemoryFormat::channels_last), 0.5, true, b);
  EXPECT_EQ(to_vector(nn::dropout(image, 0.5, true, a)), to_vector(last));
  EXPECT_EQ(last.memory_format(), MemoryFormat::channels_last);
}

}  // namespace
}  // namespace tutti
