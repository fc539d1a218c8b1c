// Tests of LayerNorm: values and gradients against elementary operations, dtypes, errors.
#include "kernels/compare.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/parallel.h>
#include <tutti/nn/functional/layer_norm.h>
#include <tutti/nn/layer_norm.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using test::relative_error;

Tensor reference(const Tensor& x, int dims, const Tensor& weight, const Tensor& bias, double eps) {
  Dims last;
  for (int d = x.rank() - dims; d < x.rank(); ++d) last.push_back(d);
  const Tensor centred = x - mean(x, last, true);
  return centred * rsqrt(mean(square(centred), last, true) + eps) * weight + bias;
}

TEST(LayerNorm, ValuesAndGradients) {
  Generator random(1);
  for (const DType dtype : {float64, float32, bfloat16})
    for (const auto& [shape, dims] : {std::pair{Shape{5, 7}, 1},
                                      {Shape{3, 4, 33}, 1},
                                      {Shape{6, 3, 2, 5}, 2},
                                      {Shape{300, 130}, 1},
                                      {Shape{2, 3000}, 1},
                                      {Shape{9}, 1}}) {
      SCOPED_TRACE(to_string(dtype) + to_string(shape));
      const Shape normalized(shape.begin() + shape.size() - dims, shape.end());
      const DType own = dtype == float64 ? float64 : float32;
      const auto leaf = [&](const Shape& s, DType d) {
        return randn(s, {float64}, random).to(d).detach().requires_grad_();
      };
      const Tensor x = leaf(shape, dtype), w = leaf(normalized, own), b = leaf(normalized, own);
      const Tensor dy = randn(shape, {float64}, random).to(dtype);
      const Tensor y = nn::layer_norm(x, normalized, w, b, 1e-3);
      y.backward(dy);
      const auto wide = [](const Tensor& t) {
        return t.detach().to(float64).clone().requires_grad_();
      };
      const Tensor rx = wide(x), rw = wide(w), rb = wide(b);
      const Tensor ry = reference(rx, dims, rw, rb, 1e-3);
      ry.backward(dy.to(float64));
      const double tolerance = dtype == float64 ? 1e-12 : dtype == float32 ? 5e-6 : 1e-2;
      EXPECT_LT(relative_error(y, ry), tolerance);
      EXPECT_LT(relative_error(x.grad(), rx.grad()), tolerance);
      EXPECT_LT(relative_error(w.grad(), rw.grad()), tolerance);
      EXPECT_LT(relative_error(b.grad(), rb.grad()), tolerance);
    }
}

TEST(LayerNorm, RightAtLargeMeans) {
  Generator random(3);
  const Tensor x = (randn({20, 500}, {float64}, random) + 1e4).to(float32);
  EXPECT_LT(
      relative_error(nn::layer_norm(x, {500}), reference(x.to(float64), 1, ones({500}, {float64}),
                                                         zeros({500}, {float64}), 1e-5)),
      2e-6);
}

TEST(LayerNorm, TheThreadCountChangesNoBit) {
  Generator random(4);
  const Tensor x = randn({700, 96}, {}, random), dy = randn({700, 96}, {}, random);
  const int before = num_threads();
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    nn::LayerNorm layer({.shape = {96}});
    layer(x).backward(dy);
    results.push_back(to_vector(layer.weight.grad()));
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
}

TEST(LayerNorm, OptionsAndRefusals) {
  nn::LayerNorm layer({.shape = {3, 4}});
  EXPECT_EQ(layer.describe(), "(3, 4)");
  EXPECT_EQ(layer.parameter_count(), 24);
  EXPECT_EQ(nn::LayerNorm({.shape = {4}, .affine = false}).parameter_count(), 0);
  EXPECT_EQ(nn::LayerNorm({.shape = {4}, .bias = false}).parameter_count(), 4);
  layer.to(bfloat16);
  EXPECT_EQ(layer.weight.dtype(), float32);
  EXPECT_THROW(layer(zeros({2, 4, 3})), ShapeError);
  EXPECT_THROW(layer(zeros({4})), ShapeError);
  EXPECT_THROW(layer(zeros({3, 4}, {int64})), DTypeError);
  const auto make = [](nn::LayerNorm::Options o) { nn::LayerNorm made(o); };
  EXPECT_THROW(make({.shape = {}}), ShapeError);
  EXPECT_THROW(make({.shape = {0}}), ValueError);
  EXPECT_THROW(make({.shape = {3}, .eps = -1}), ValueError);
  EXPECT_THROW(make({.shape = {3}, .dtype = bfloat16}), DTypeError);
}

}  // namespace
}  // namespace tutti
