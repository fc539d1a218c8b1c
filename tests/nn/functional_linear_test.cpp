// Tests of nn::linear: mixed precision and errors. tests/random compares its values
// and gradients with plain loops.
#include "dtype_options.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/nn/functional/linear.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Linear, AutocastKeepsParametersInFloat32) {
  const Tensor x = randn({6, 8}), w = randn({3, 8}), b = randn({3});
  for (const Tensor& t : {x, w, b}) t.requires_grad_();
  const std::vector<double> expected = to_vector(nn::linear(x, w, b));
  const Autocast autocast(bfloat16);
  const Tensor y = nn::linear(x, w, b);
  EXPECT_EQ(y.dtype(), bfloat16);
  const std::vector<double> values = to_vector(y);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 0.02 * 4);
  y.backward(ones({6, 3}, {bfloat16}));
  for (const Tensor& t : {x, w, b}) EXPECT_EQ(t.grad().dtype(), float32);
}

TEST(Linear, TheBiasGradientOf16BitActivationsIsSummedAndKeptInFloat32) {
  const Tensor x = randn({257, 2}, {bfloat16}), w = randn({1, 2}), b = zeros({1}).requires_grad_();
  nn::linear(x, w, b).backward(ones({257, 1}, {bfloat16}));
  EXPECT_EQ(b.grad().item<double>(), 257);  // bfloat16 has 256 and 258
}

TEST(Linear, Errors) {
  const Tensor w = randn({5, 3});
  EXPECT_THROW(nn::linear(randn({2, 4}), w), ShapeError);
  EXPECT_THROW(nn::linear(scalar(1), w), ShapeError);
  EXPECT_THROW(nn::linear(randn({2, 3}), randn({3})), ShapeError);
  EXPECT_THROW(nn::linear(randn({2, 3}), w, randn({3})), ShapeError);
  EXPECT_THROW(nn::linear(randn({2, 3}, f64), w), DTypeError);
}

}  // namespace
}  // namespace tutti
