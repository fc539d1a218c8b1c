// The fully connected map: values, gradients, mixed precision and errors.
#include <tutti/autograd/grad_mode.h>
#include <tutti/autograd/gradcheck.h>
#include <tutti/core/create.h>
#include <tutti/nn/functional/linear.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using autograd::gradcheck;

const TensorOptions f64{.dtype = float64};

TEST(Linear, ByHand) {
  const Tensor x = tensor({1, 2, 3}, {1, 3}), w = tensor({1, 0, 0, 1, 1, 1}, {2, 3}), b = tensor({10, 20});
  EXPECT_EQ(to_vector(nn::linear(x, w, b)), (std::vector<double>{11, 26}));
}

TEST(Linear, Gradcheck) {
  for (const Shape& shape : {Shape{4, 3}, Shape{3}, Shape{2, 2, 3}, Shape{0, 3}}) {
    const Tensor x = randn(shape, f64), w = randn({5, 3}, f64), b = randn({5}, f64);
    const auto with = gradcheck([](const std::vector<Tensor>& in) { return nn::linear(in[0], in[1], in[2]); }, {x, w, b});
    EXPECT_TRUE(with) << with.message;
    const auto without = gradcheck([](const std::vector<Tensor>& in) { return nn::linear(in[0], in[1]); }, {x, w});
    EXPECT_TRUE(without) << without.message;
  }
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
