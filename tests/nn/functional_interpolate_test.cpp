// Tests of interpolation as a differentiable function: sizes, layouts, dtypes, errors. tests/random
// compares its values and gradients with plain loops, tests/nn/fixtures_test.cpp with PyTorch.
#include "distributed/messages.h"

#include <tutti/core/create.h>
#include <tutti/nn/upsample.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

using nn::interpolate;
using nn::InterpolateMode;
using test::message_of;

TEST(Interpolate, RoundsSizesDownAndKeepsLayoutAndDtype) {
  const Tensor x = randn({2, 3, 5, 4}).contiguous(MemoryFormat::channels_last).to(bfloat16);
  const Tensor y = interpolate(x, {.scale_factor = {1.7, 0.6}, .mode = InterpolateMode::bilinear});
  EXPECT_EQ(y.shape(), (Shape{2, 3, 8, 2}));
  EXPECT_EQ(y.memory_format(), MemoryFormat::channels_last);
  EXPECT_EQ(y.dtype(), bfloat16);
  EXPECT_EQ(interpolate(randn({0, 3, 5}), {.size = {9}}).shape(), (Shape{0, 3, 9}));
}

TEST(Interpolate, KeepsAConstantAndTheCorners) {
  const Tensor x = tensor({1, 2, 3, 4}, {1, 1, 2, 2});
  const Tensor y =
      interpolate(x, {.size = {9}, .mode = InterpolateMode::bilinear, .align_corners = true});
  EXPECT_EQ(to_vector(y.slice(2, 0, 9, 8).slice(3, 0, 9, 8)), to_vector(x));
  for (const double v : to_vector(interpolate(full({1, 1, 3, 2}, 5), {.scale_factor = {3.3}})))
    EXPECT_EQ(v, 5);
}

// As in PyTorch, a linear mode copies a dimension whose size stays, whatever the factor is.
TEST(Interpolate, LinearCopiesADimensionWhoseSizeStays) {
  const TensorOptions f64{float64};
  const Tensor line = tensor({0, 1}, {1, 1, 2}, f64).requires_grad_();
  const Tensor y = interpolate(line, {.scale_factor = {1.1}, .mode = InterpolateMode::linear});
  EXPECT_EQ(to_vector(y), (std::vector<double>{0, 1}));
  y.backward(tensor({3, 5}, {1, 1, 2}, f64));
  EXPECT_EQ(to_vector(line.grad()), (std::vector<double>{3, 5}));
  // The rows are copied; the columns are interpolated at 0, 0.25, 0.75 and 1.
  const Tensor x = tensor({0, 4, 8, 12, 20, 28}, {1, 1, 3, 2}, f64).requires_grad_();
  const Tensor z = interpolate(x, {.scale_factor = {1.3, 2}, .mode = InterpolateMode::bilinear});
  EXPECT_EQ(to_vector(z), (std::vector<double>{0, 1, 3, 4, 8, 9, 11, 12, 20, 22, 26, 28}));
  z.backward(ones({1, 1, 3, 4}, f64));
  EXPECT_EQ(to_vector(x.grad()), std::vector<double>(6, 2));
  const Tensor volume = randn({1, 2, 3, 2, 4}, f64);
  EXPECT_EQ(to_vector(interpolate(
                volume, {.scale_factor = {1.3, 1.4, 1.2}, .mode = InterpolateMode::trilinear})),
            to_vector(volume));
}

TEST(Interpolate, Errors) {
  const Tensor x = randn({2, 3, 4, 4});
  EXPECT_THROW(interpolate(randn({3, 4}), {.size = {2}}), ShapeError);
  EXPECT_THROW(interpolate(randn({2, 3, 0, 4}), {.size = {2}}), ShapeError);
  EXPECT_THROW(interpolate(ones({2, 3, 4}, {int64}), {.size = {2}}), DTypeError);
  EXPECT_THROW(interpolate(x, {}), ValueError);
  EXPECT_THROW(interpolate(x, {.size = {2}, .scale_factor = {2}}), ValueError);
  EXPECT_THROW(interpolate(x, {.size = {2, 2, 2}}), ValueError);
  EXPECT_THROW(interpolate(x, {.scale_factor = {2, 2, 2}}), ValueError);
  EXPECT_THROW(interpolate(x, {.size = {0}}), ValueError);
  EXPECT_THROW(interpolate(x, {.scale_factor = {0.2}}), ValueError);  // nothing is left
  EXPECT_THROW(interpolate(x, {.scale_factor = {NAN}}), ValueError);
  EXPECT_THROW(interpolate(x, {.scale_factor = {1e12}}), ValueError);
  EXPECT_THROW(interpolate(x, {.size = {2}, .align_corners = true}), ValueError);
  EXPECT_EQ(message_of<ValueError>(
                [&] { interpolate(x, {.size = {2}, .mode = InterpolateMode::linear}); }),
            "interpolate: the mode linear needs an input of rank 3, got shape (2, 3, 4, 4)");
}

TEST(Upsample, DescribesItself) {
  EXPECT_EQ(nn::Upsample({.scale_factor = {2, 1.5}}).describe(), "scale_factor=2 x 1.5, nearest");
  EXPECT_EQ(nn::Upsample({.size = {9, 7}, .mode = InterpolateMode::bilinear, .align_corners = true})
                .describe(),
            "size=(9, 7), bilinear, align_corners=true");
}

}  // namespace
}  // namespace tutti
