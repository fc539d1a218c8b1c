// Tests of the differentiable matrix product: 16-bit gradients, mixed precision, expanded factors
// and errors. tests/random compares its values and gradients with plain loops.
#include "dtype_options.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/autograd/matmul.h>
#include <tutti/core/create.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

TEST(Matmul, TheGradientOfABroadcastOperandIsRoundedOnce) {
  // The four batches of the gradient nearly cancel, so what is lost by rounding each would show.
  const std::vector<double> weights{3, -1, -2, 0.0625};
  const Tensor values = randn({5, 7}).to(bfloat16), counts = randint(5, {5, 3}) - 2;
  std::vector<Tensor> rows, gradients;
  for (const double weight : weights) {
    rows.push_back(weight == 0.0625 ? randn({5, 7}).to(bfloat16) : values);
    gradients.push_back((counts.to(float32) * weight).to(bfloat16));
  }
  const Tensor many = stack(rows), g = stack(gradients);
  const auto close = [](const Tensor& got, const Tensor& expected) {
    EXPECT_EQ(got.dtype(), bfloat16);
    const std::vector<double> a = to_vector(got), b = to_vector(expected);
    ASSERT_EQ(a.size(), b.size());
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      norm += b[i] * b[i];
    }
    EXPECT_LE(std::sqrt(difference / norm), 3e-3);
  };
  const Tensor right = randn({1, 7, 3}).to(bfloat16).requires_grad_();
  matmul(many, right).backward(g);
  close(right.grad(), sum(matmul(many.transpose(1, 2).to(float64), g.to(float64)), {0}, true));
  const Tensor left = randn({3, 7}).to(bfloat16).requires_grad_();
  matmul(left, many.transpose(1, 2)).backward(g.transpose(1, 2));
  close(left.grad(), sum(matmul(g.transpose(1, 2).to(float64), many.to(float64)), {0}));
}

TEST(Matmul, Autocast) {
  const Tensor a = randn({4, 8}), b = randn({8, 3});
  a.requires_grad_();
  const Autocast autocast(bfloat16);
  const Tensor out = matmul(a, b);
  EXPECT_EQ(out.dtype(), bfloat16);
  out.backward(ones({4, 3}, {bfloat16}));
  EXPECT_EQ(a.grad().dtype(), float32);
}

TEST(Matmul, Errors) {
  EXPECT_THROW(matmul(randn({2, 3}), randn({2, 3})), ShapeError);
  EXPECT_THROW(matmul(randn({2, 3}), randn({2})), ShapeError);
  EXPECT_THROW(matmul(randn({2, 2, 3}), randn({3, 3, 2})), ShapeError);
  EXPECT_THROW(matmul(scalar(1), randn({2})), ShapeError);
  EXPECT_THROW(matmul(randn({2, 3}), randn({3, 2}, f64)), DTypeError);
  EXPECT_THROW(matmul(zeros({2, 3}, {int64}), zeros({3, 2}, {int64})), DTypeError);
}

// oneDNN broadcasts a factor to the size of the other, which an expanded one does not have.
TEST(Matmul, AnExpandedFactorMeetsOneThatBroadcasts) {
  for (const DType dtype : {float32, float64, bfloat16}) {
    const Tensor a = randn({1, 1, 4, 7}).to(dtype), b = randn({5, 1, 7, 2}).to(dtype);
    const Tensor difference = matmul(a.expand({5, 3, 4, 7}), b) - matmul(a, b);
    EXPECT_EQ(difference.shape(), (Shape{5, 3, 4, 2}));
    EXPECT_LT(max(abs(difference.to(float64))).item<double>(), 0.05) << to_string(dtype);
  }
}

}  // namespace
}  // namespace tutti
