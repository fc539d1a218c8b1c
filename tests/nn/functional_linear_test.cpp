// Tests of nn::linear: the activation, mixed precision and errors. tests/random compares its values
// and gradients with plain loops.
#include "dtype_options.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/nn/functional/activation.h>
#include <tutti/nn/functional/linear.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

using nn::Activation;

// The activation inside linear() gives the bits of relu() after it: the products are the same.
TEST(Linear, JoinedReluIsReluOfLinear) {
  const auto expect_same = [](const Tensor& x, const Tensor& w, const Tensor& b) {
    SCOPED_TRACE(to_string(x.dtype()) + " " + to_string(x.shape()) + to_string(x.strides()) +
                 (b.defined() ? ", bias" : ""));
    std::vector<std::vector<double>> results[2];
    for (const bool joined : {false, true}) {
      std::vector<Tensor> leaves;
      for (const Tensor& t : {x, w, b})
        leaves.push_back(t.defined() ? t.detach().requires_grad_() : t);
      const Tensor y = joined ? nn::linear(leaves[0], leaves[1], leaves[2], Activation::relu)
                              : nn::relu(nn::linear(leaves[0], leaves[1], leaves[2]));
      results[joined].push_back(to_vector(y.detach()));
      Generator generator(1);
      y.backward(randn(y.shape(), {y.dtype()}, generator));
      for (const Tensor& leaf : leaves)
        if (leaf.defined()) results[joined].push_back(to_vector(leaf.grad()));
    }
    EXPECT_EQ(results[0], results[1]);
  };
  for (const DType dtype : {float32, float64, bfloat16}) {
    const TensorOptions options{.dtype = dtype};
    for (const Tensor& b : {randn({5}, options), Tensor()}) {
      expect_same(randn({7, 3}, options), randn({5, 3}, options), b);
      expect_same(randn({2, 4, 3}, options).transpose(0, 1), randn({3, 5}, options).transpose(0, 1),
                  b);
      expect_same(randn({7, 6}, options).slice(1, 0, 6, 2), randn({5, 6}, options).slice(1, 1, 4),
                  b);
      expect_same(randn({3}, options), randn({5, 3}, options), b);
      expect_same(empty({0, 3}, options), randn({5, 3}, options), b);
      expect_same(empty({4, 0}, options), empty({5, 0}, options), b);  // the bias alone
    }
  }
  expect_same(randn({6, 3}, {bfloat16}), randn({5, 3}), randn({5}));  // float32 parameters
}

TEST(Linear, JoinedReluOfNaN) {
  const Tensor x = tensor({NAN, 1}, {2, 1}), w = ones({1, 1});
  x.requires_grad_();
  const Tensor y = nn::linear(x, w, {}, Activation::relu);
  EXPECT_TRUE(std::isnan(to_vector(y.detach())[0]));
  EXPECT_EQ(to_vector(y.detach())[1], 1);
  y.backward(ones({2, 1}));
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{1, 1}));  // relu() does the same
}

// Backward passes the gradient where the saved output is above 0 or NaN.
TEST(Linear, JoinedReluNoticesAChangedOutput) {
  const Tensor x = randn({2, 3}), w = randn({4, 3}).requires_grad_();
  const Tensor y = nn::linear(x, w, {}, Activation::relu);
  y.detach().fill_(1);
  EXPECT_THROW(y.backward(ones({2, 4})), Error);
}

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
