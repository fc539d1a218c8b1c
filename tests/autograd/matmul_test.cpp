// Tests of the differentiable matrix product: vectors, batches, gradients and errors.
#include "dtype_options.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/autograd/gradcheck.h>
#include <tutti/autograd/matmul.h>
#include <tutti/core/create.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti {
namespace {

using autograd::gradcheck;

struct Product {
  Shape a, b, out;
};

class MatmulShapes : public ::testing::TestWithParam<Product> {};

TEST_P(MatmulShapes, ShapeAndGradient) {
  const Product& c = GetParam();
  const Tensor a = randn(c.a, f64), b = randn(c.b, f64);
  EXPECT_EQ(matmul(a, b).shape(), c.out);
  const auto result =
      gradcheck([](const std::vector<Tensor>& in) { return matmul(in[0], in[1]); }, {a, b});
  EXPECT_TRUE(result) << result.message;
}

INSTANTIATE_TEST_SUITE_P(
    Matmul, MatmulShapes,
    ::testing::Values(Product{{3}, {3}, {}}, Product{{3}, {3, 2}, {2}}, Product{{2, 3}, {3}, {2}},
                      Product{{2, 3}, {3, 4}, {2, 4}}, Product{{5, 2, 3}, {3, 4}, {5, 2, 4}},
                      Product{{2, 3}, {5, 3, 4}, {5, 2, 4}},
                      Product{{5, 2, 3}, {5, 3, 4}, {5, 2, 4}},
                      Product{{4, 1, 2, 3}, {5, 3, 2}, {4, 5, 2, 2}},
                      Product{{3}, {5, 3, 4}, {5, 4}}, Product{{5, 2, 3}, {3}, {5, 2}},
                      Product{{0, 3}, {3, 4}, {0, 4}}, Product{{2, 0}, {0, 4}, {2, 4}}),
    [](const auto& each) { return "case" + std::to_string(each.index); });

TEST(Matmul, BatchesAreTheProductsOfTheirMatrices) {
  const Tensor a = randn({2, 1, 3, 4}), b = randn({5, 4, 2}), out = matmul(a, b);
  for (std::int64_t i = 0; i < 2; ++i)
    for (std::int64_t j = 0; j < 5; ++j) {
      const std::vector<double> is = to_vector(out.select(0, i).select(0, j)),
                                should =
                                    to_vector(matmul(a.select(0, i).select(0, 0), b.select(0, j)));
      for (std::size_t k = 0; k < is.size(); ++k) EXPECT_NEAR(is[k], should[k], 1e-5);
    }
}

TEST(Matmul, OddStrides) {
  // Kernels take neither of these matrices: one has steps of two in both directions, the other is
  // one row expanded.
  const Tensor a = randn({6, 8}, f64), b = randn({1, 5}, f64);
  const auto result = gradcheck(
      [](const std::vector<Tensor>& in) {
        return matmul(in[0].slice(0, 0, 6, 2).slice(1, 0, 8, 2), in[1].expand({4, 5}));
      },
      {a, b});
  EXPECT_TRUE(result) << result.message;
}

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
