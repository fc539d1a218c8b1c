// Tests of the operations that choose and move elements by their indices, and of clamp, sign, var
// and std: dtypes, empty tensors, NaN and errors. tests/random compares their values and gradients
// with plain loops.
#include "dtype_options.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/indexing.h>
#include <tutti/core/create.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

using Values = std::vector<double>;

Tensor normal(const Shape& shape) {
  static Generator generator(71);
  return randn(shape, f64, generator);
}

TEST(Indexing, EveryDTypeMoves) {
  const Tensor index = tensor({1, 0, 1}, i64);
  for (const DType dtype : {float32, float64, bfloat16, float16, int64, uint8, boolean}) {
    const Tensor x = tensor({1, 0}, {dtype});
    for (const Tensor& y :
         {gather(x, 0, index), index_select(x, 0, index), pad(flip(x, {0}), {0, 1}, 0)}) {
      EXPECT_EQ(y.dtype(), dtype);
      EXPECT_EQ(to_vector(y), (Values{0, 1, 0}));
    }
  }
  for (const DType dtype : {float32, float64, bfloat16, int64, uint8}) {
    const Tensor x = tensor({1, 7, 0, 7}, {dtype});
    const auto [values, indices] = topk(x, 3);
    EXPECT_EQ(values.dtype(), dtype);
    EXPECT_EQ(to_vector(values), (Values{7, 7, 1}));
    EXPECT_EQ(to_vector(indices), (Values{1, 3, 0}));
    EXPECT_EQ(to_vector(clamp(x, 1, 6)), (Values{1, 6, 1, 6}));
    EXPECT_EQ(to_vector(sign(x)), (Values{1, 1, 0, 1}));
  }
  EXPECT_EQ(to_vector(sign(tensor({-3, 0, 5}, i64))), (Values{-1, 0, 1}));
  EXPECT_EQ(to_vector(clamp(tensor({0, 9}, {uint8}), -5, 300)), (Values{0, 9}));
}

TEST(Indexing, EmptyTensors) {
  const Tensor none = zeros({0, 3}, f64).requires_grad_(), no_index = zeros({0}, i64);
  EXPECT_EQ(gather(none, 0, zeros({0, 2}, i64)).shape(), (Shape{0, 2}));
  EXPECT_EQ(index_select(none, 0, no_index).shape(), (Shape{0, 3}));
  EXPECT_EQ(index_select(none, 1, tensor({2, 2}, i64)).shape(), (Shape{0, 2}));
  EXPECT_EQ(index_select(ones({2, 3}), 1, no_index).shape(), (Shape{2, 0}));
  EXPECT_EQ(topk(none, 2, 1).first.shape(), (Shape{0, 2}));
  EXPECT_EQ(topk(ones({2, 3}), 0).second.shape(), (Shape{2, 0}));
  EXPECT_EQ(flip(none, {0, 1}).shape(), (Shape{0, 3}));
  EXPECT_EQ(one_hot(no_index, 4).shape(), (Shape{0, 4}));
  EXPECT_EQ(to_vector(pad(none, {0, 0, 1, 0}, 2).slice(1, 0, 1)), (Values{2}));
  EXPECT_TRUE(std::isnan(var(none).item<double>()));
  sum(index_select(none, 1, tensor({2, 2}, i64))).backward();
  EXPECT_EQ(none.grad().shape(), none.shape());
}

TEST(Indexing, SumsLowPrecisionGradientsInFloat32) {
  const Tensor x = zeros({1}, {.dtype = bfloat16}).requires_grad_(), index = zeros({1000}, i64);
  sum(gather(x, 0, index)).backward();
  EXPECT_EQ(x.grad().item<double>(), 1000);  // in bfloat16, 256 + 1 is 256
  x.set_grad({});
  sum(index_select(x, 0, index)).backward();
  EXPECT_EQ(x.grad().item<double>(), 1000);
}

TEST(Indexing, KeepsTheMemoryFormatOfImages) {
  const Tensor x = normal({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last);
  for (const Tensor& y : {flip(x, {3}), pad(x, {1, 1, 1, 1}), index_select(x, 0, tensor({1}, i64))})
    EXPECT_TRUE(y.is_contiguous(MemoryFormat::channels_last));
}

TEST(Topk, PutsNanFirstAndEqualElementsInTheirOrder) {
  const Tensor x = tensor({1, NAN, 3, 3, INFINITY, NAN, -0.0, 0.0});
  EXPECT_EQ(to_vector(topk(x, 8).second), (Values{1, 5, 4, 2, 3, 0, 6, 7}));
  EXPECT_EQ(topk(scalar(4), 1).first.shape(), Shape());
}

TEST(Clamp, PassesTheGradientBetweenTheBoundsAndAtNan) {
  const Tensor x = tensor({-1, -0.5, 0, 1, 2, NAN}).requires_grad_();
  const Tensor y = clamp(x, -0.5, 1);
  EXPECT_EQ(to_vector(y.slice(0, 0, 5)), (Values{-0.5, -0.5, 0, 1, 1}));
  EXPECT_TRUE(std::isnan(to_vector(y)[5]));
  sum(y).backward();
  EXPECT_EQ(to_vector(x.grad()), (Values{0, 0, 1, 0, 0, 1}));
}

TEST(Variance, KeepsItsDigitsFarFromZero) {
  const Tensor x = tensor({1e8 + 1, 1e8 + 2, 1e8 + 3, 1e8 + 4}, f64);
  EXPECT_DOUBLE_EQ(var(x).item<double>(), 5.0 / 3);
  EXPECT_DOUBLE_EQ(tutti::std(x, {0}, {.correction = 0}).item<double>(), std::sqrt(1.25));
  EXPECT_DOUBLE_EQ(var(tensor({4097, 4098, 4099}, {float32})).item<double>(), 1);
  EXPECT_TRUE(std::isnan(var(tensor({1})).item<double>()));
  EXPECT_TRUE(std::isinf(var(tensor({1, 2}), {0}, {.correction = 2}).item<double>()));
}

TEST(Indexing, IndicesThatHaveChangedBeforeBackwardAreChecked) {
  const auto expect_refusal = [](const Tensor& y, const Tensor& index, const char* op) {
    for (const std::int64_t outside : {std::int64_t{3}, std::int64_t{-1}, std::int64_t{1} << 40}) {
      index.data<std::int64_t>()[0] = outside;
      try {
        y.backward(ones(y.shape(), f64), true);
        FAIL() << op;
      } catch (const ValueError& error) {
        EXPECT_NE(std::string(error.what()).find(op), std::string::npos) << error.what();
      }
    }
  };
  const Tensor x = normal({3, 3}).requires_grad_();
  const Tensor index = tensor({1, 0}, i64), many = tensor({1, 0, 2, 1}, {2, 2}, i64);
  expect_refusal(index_select(x, 1, index), index, "index_select: expected indices from 0 to 2");
  expect_refusal(gather(x, 0, many), many, "gather: expected indices from 0 to 2");
  const auto [values, indices] = topk(x, 2);
  expect_refusal(values, indices, "gather: expected indices from 0 to 2");
  EXPECT_FALSE(x.grad().defined());
}

TEST(Indexing, Errors) {
  const Tensor x = normal({3, 4}), index = zeros({3, 2}, i64);
  EXPECT_THROW(gather(x, 1, index + 4), ValueError);
  EXPECT_THROW(gather(x, 1, index - 1), ValueError);
  EXPECT_THROW(gather(x, 1, zeros({3, 2})), DTypeError);
  EXPECT_THROW(gather(x, 1, zeros({3}, i64)), ShapeError);
  EXPECT_THROW(gather(x, 1, zeros({4, 2}, i64)), ShapeError);
  EXPECT_THROW(gather(x, 2, index), ShapeError);
  EXPECT_THROW(gather(zeros({3, 0}), 1, index), ShapeError);
  EXPECT_THROW(index_select(x, 0, tensor({3}, i64)), ValueError);
  EXPECT_THROW(index_select(x, 0, index), ShapeError);
  EXPECT_THROW(index_select(zeros({0, 3}), 0, tensor({0}, i64)), ShapeError);
  EXPECT_THROW(topk(x, 5), ValueError);
  EXPECT_THROW(topk(x, -1), ValueError);
  EXPECT_THROW(one_hot(tensor({4}, i64), 4), ValueError);
  EXPECT_THROW(one_hot(tensor({-1}, i64), 4), ValueError);
  EXPECT_THROW(one_hot(index, 0), ValueError);
  EXPECT_THROW(one_hot(x, 4), DTypeError);
  EXPECT_THROW(flip(x, {0, -2}), ShapeError);
  EXPECT_THROW(flip(x, {2}), ShapeError);
  EXPECT_THROW(pad(x, {1}), ShapeError);
  EXPECT_THROW(pad(x, {1, 1, 1, 1, 1, 1}), ShapeError);
  EXPECT_THROW(pad(x, {-3, -2}), ShapeError);
  EXPECT_THROW(pad(x, {INT64_MAX, 1}), ShapeError);
  EXPECT_THROW(pad(index, {1, 1}, 0.5), DTypeError);
  EXPECT_THROW(clamp(x, {}, {}), ValueError);
  EXPECT_THROW(clamp(index, 0.5, {}), DTypeError);
  EXPECT_THROW(masked_fill(x, index, 0), DTypeError);
  EXPECT_THROW(masked_fill(index, eq(index, 0), 0.5), DTypeError);
  EXPECT_THROW(masked_fill(x, ones({5}, {boolean}), 0), ShapeError);
  EXPECT_THROW(var(index), DTypeError);
  EXPECT_THROW(var(x, {0, 0}), ShapeError);
  EXPECT_THROW(argmax(zeros({0, 2})), ShapeError);
}

}  // namespace
}  // namespace tutti
