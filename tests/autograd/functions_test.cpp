// Tests of the differentiable free functions where random inputs do not come: memory that a
// gradient may overwrite, infinite gradients, large numbers, layouts, and errors for tensors that
// do not fit together. tests/random compares values and gradients with plain loops.
#include "dtype_options.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/indexing.h>
#include <tutti/core/create.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tutti {
namespace {

TEST(FunctionsGradient, ReluMayOverwriteOnlyWhatNobodySees) {
  // Both uses of x + 1 receive the gradient that relu would like to overwrite.
  const Tensor x = tensor({-3, 1, 2}, f64).requires_grad_();
  const Tensor y = x + 1, g = ones({3}, f64);
  (relu(y) + y).backward(g);
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{1, 2, 2}));
  EXPECT_EQ(to_vector(g), (std::vector<double>{1, 1, 1}));
  const Tensor z = tensor({-3, 1, 2}, f64).requires_grad_();
  sum(relu(relu(z))).backward();  // an expanded gradient reaches relu
  EXPECT_EQ(to_vector(z.grad()), (std::vector<double>{0, 1, 1}));
}

TEST(FunctionsGradient, DoesNotVanishAtNaN) {
  const double inf = INFINITY;
  for (const DType dtype : {float32, float64, bfloat16}) {
    const Tensor x = tensor({NAN, 1, -1, 0, NAN}, {dtype}).requires_grad_();
    relu(x).backward(tensor({2, 3, inf, NAN, 5}, {dtype}));
    EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{2, 3, 0, 0, 5}));
    for (auto* f : {maximum, minimum}) {
      const double sign = f == maximum ? 1 : -1;
      const Tensor a = (tensor({NAN, 1, NAN, 2, 4, 1}, {dtype}) * sign).requires_grad_(),
                   b = (tensor({1, NAN, NAN, 2, 1, 4}, {dtype}) * sign).requires_grad_();
      f(a, b).backward(tensor({3, 5, 7, 8, inf, 6}, {dtype}));
      EXPECT_EQ(to_vector(a.grad()), (std::vector<double>{3, 5, 7, 4, inf, 0}));
      EXPECT_EQ(to_vector(b.grad()), (std::vector<double>{3, 5, 7, 4, 0, 6}));
    }
  }
}

TEST(FunctionsReduce, AnyCorrectionOfAVarianceIsTaken) {
  const Tensor x = tensor({1, 2, 3, 6}, f64);
  constexpr auto least = std::numeric_limits<std::int64_t>::min();
  EXPECT_DOUBLE_EQ(var(x, {0}, {.correction = least}).item<double>(), 14 / 0x1p63);
  EXPECT_EQ(var(x, {0}, {.correction = 5}).item<double>(), INFINITY);
}

TEST(FunctionsReduce, AMeanOf16BitNumbersIsRoundedOnce) {
  // bfloat16 has 256 and 258 but not 257, so a sum in bfloat16 would be rounded.
  const Tensor x = ones({257}, {bfloat16}).requires_grad_();
  const Tensor y = mean(x);
  EXPECT_EQ(y.dtype(), bfloat16);
  EXPECT_EQ(y.item<double>(), 1);
  y.backward();
  EXPECT_EQ(to_vector(x.grad()), std::vector<double>(257, BFloat16(1.0f / 257)));
}

TEST(FunctionsReduce, ADimensionNeedsNoBraces) {
  const Tensor x = tensor({1, 5, 3, 2}, {2, 2});
  EXPECT_EQ(to_vector(sum(x, 1)), (std::vector<double>{6, 5}));
  EXPECT_EQ(to_vector(max(x, -1)), (std::vector<double>{5, 3}));
  EXPECT_EQ(mean(x, 0, true).shape(), (Shape{1, 2}));
  EXPECT_EQ(to_vector(var(x, 1, {.correction = 0})), (std::vector<double>{4, 0.25}));
  EXPECT_EQ(x.reshape(-1).shape(), (Shape{4}));
}

TEST(FunctionsCompare, OperatorsAreTheFunctions) {
  const Tensor a = tensor({1, 2, 3}), b = tensor({3, 2, 1});
  const auto expect_bools = [](const Tensor& result, const std::vector<double>& expected) {
    EXPECT_EQ(result.dtype(), boolean);
    EXPECT_EQ(to_vector(result), expected);
  };
  expect_bools(a == b, {0, 1, 0});
  expect_bools(a != b, {1, 0, 1});
  expect_bools(a < b, {1, 0, 0});
  expect_bools(a <= b, {1, 1, 0});
  expect_bools(a > b, {0, 0, 1});
  expect_bools(a >= b, {0, 1, 1});
  expect_bools(a == 2, {0, 1, 0});
  expect_bools(a != 2, {1, 0, 1});
  expect_bools(a < 2, {1, 0, 0});
  expect_bools(a <= 2, {1, 1, 0});
  expect_bools(a > 2, {0, 0, 1});
  expect_bools(a >= 2, {0, 1, 1});
  EXPECT_EQ(a[2].item<int>(), 3);
  EXPECT_THROW(a[3], ShapeError);
}

TEST(FunctionsReduce, OfEqualLargestElementsTheFirstIsNamed) {
  const double nan = std::nan("");
  EXPECT_EQ(argmax(tensor({1, 3, 2, 3})).item<int>(), 1);
  EXPECT_EQ(argmax(tensor({1, nan, 5, nan})).item<int>(), 1);
  EXPECT_EQ(to_vector(topk(tensor({1, 3, 2, 3, 3}), 3, 0).second), (std::vector<double>{1, 3, 4}));
}

TEST(FunctionsSoftmax, SumsToOneAndSurvivesLargeNumbers) {
  const Tensor x = tensor({1000, 1001, 999, -1000, 0, 1000}, {2, 3}, f64);
  const auto y = to_vector(softmax(x, 1)), log = to_vector(log_softmax(x, 1));
  EXPECT_NEAR(y[0] + y[1] + y[2], 1, 1e-15);
  EXPECT_NEAR(y[1] / y[0], std::exp(1.0), 1e-12);
  EXPECT_EQ(log[3], -2000);
  EXPECT_NEAR(std::exp(log[0]), y[0], 1e-15);
}

TEST(FunctionsSoftmax, ATensorWithoutDimensionsIsASliceOfOne) {
  for (const int dim : {0, -1}) {
    for (const DType dtype : {float32, float64, bfloat16}) {
      const Tensor x = scalar(3, {dtype}).requires_grad_();
      for (auto* f : {softmax, log_softmax}) {
        const Tensor y = f(x, dim);
        EXPECT_EQ(y.shape(), Shape{});
        EXPECT_EQ(y.item<double>(), f == softmax ? 1 : 0);
        y.backward();
        EXPECT_EQ(x.grad().shape(), Shape{});
        EXPECT_EQ(x.grad().item<double>(), 0);
      }
    }
    for (const bool keepdim : {false, true}) {
      const Tensor at = argmax(scalar(3), dim, keepdim);
      EXPECT_EQ(at.shape(), Shape{});
      EXPECT_EQ(at.dtype(), int64);
      EXPECT_EQ(at.item<std::int64_t>(), 0);
    }
  }
  EXPECT_THROW(softmax(scalar(3), 1), ShapeError);
  EXPECT_THROW(argmax(scalar(3), -2), ShapeError);
}

TEST(FunctionsJoin, KeepsTheMemoryFormatAndRefusesWhatDoesNotFit) {
  const Tensor image = zeros({2, 3, 4, 4}).contiguous(MemoryFormat::channels_last);
  EXPECT_EQ(cat({image, image}, 1).memory_format(), MemoryFormat::channels_last);
  EXPECT_THROW(cat({zeros({1, 2}), zeros({2, 3})}), ShapeError);
  EXPECT_THROW(cat({}), ShapeError);
}

TEST(FunctionsJoin, SizesThatAddUpToTooMuch) {
  const Tensor huge = zeros({1}).expand({std::int64_t{1} << 62});
  try {
    cat({huge, huge});
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_NE(std::string(error.what()).find("cat: the sizes in dimension 0"), std::string::npos)
        << error.what();
  }
}

TEST(FunctionsLayout, OutputsKeepTheLayoutOfTheirInputs) {
  const Tensor x = empty({2, 3, 4, 5}, {}, MemoryFormat::channels_last).fill_(1);
  const Tensor scale = ones({1, 3, 1, 1});
  EXPECT_EQ(relu(x).memory_format(), MemoryFormat::channels_last);
  EXPECT_EQ((x * scale).memory_format(), MemoryFormat::channels_last);
  EXPECT_EQ((scale * x).memory_format(), MemoryFormat::channels_last);
  EXPECT_EQ((x + x * 2).memory_format(), MemoryFormat::channels_last);
}

TEST(FunctionsErrors, TensorsThatDoNotFit) {
  const Tensor a = ones({2, 3}), b = ones({2, 3}, f64);
  EXPECT_THROW(a + b, DTypeError);
  EXPECT_THROW(a + ones({2, 2}), ShapeError);
  EXPECT_THROW(arange(3) / arange(3), DTypeError);
  EXPECT_THROW(arange(3) * 0.5, DTypeError);
  EXPECT_EQ(to_vector(arange(3) * 2), (std::vector<double>{0, 2, 4}));
  EXPECT_THROW(sqrt(arange(3)), DTypeError);
  EXPECT_THROW(where(a, a, a), DTypeError);
  EXPECT_THROW(sum(a, {2}), ShapeError);
  EXPECT_THROW(sum(a, {0, -2}), ShapeError);
  EXPECT_THROW(max(ones({2, 0}), {1}), ShapeError);
  try {
    a + b;
    FAIL();
  } catch (const DTypeError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("add: expected tensors of one dtype, got float32 and float64"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tutti
