// Layer normalisation kernels against their definitions in float64, over numbers and lengths of
// rows, dtypes and absent parameters. Outputs are poisoned and lie in guarded memory.
#include "guarded.h"
#include "tables.h"

#include "compare.h"

#include <tutti/autograd/functions.h>

#include <gtest/gtest.h>

namespace tutti::layer_norm_test {
namespace {

using test::Guarded;
using test::relative_error;

const kernels::LayerNorm& table() { return test::layer_norm(); }

double tolerance(DType dtype) { return dtype == float64 ? 1e-12 : dtype == float32 ? 3e-6 : 5e-3; }

constexpr double eps = 1e-3;

// A random case: `rows` rows of `size` elements in `dtype`, parameters in `own`.
struct Case {
  std::int64_t rows, size;
  DType dtype, own;
  bool has_weight, has_bias;
};

// The definitions, in float64, on the rounded inputs.
struct Reference {
  std::vector<double> y, mean, rstd, dx, d_weight, d_bias;
  double dx_scale = 0;  // The norm of rstd g, of which dx is the small rest in short rows.

  Reference(const Case& c, const Tensor& x_, const Tensor& weight_, const Tensor& bias_,
            const Tensor& dy_)
      : d_weight(static_cast<std::size_t>(c.size)), d_bias(static_cast<std::size_t>(c.size)) {
    const auto x = to_vector(x_), dy = to_vector(dy_);
    const auto size = static_cast<std::size_t>(c.size);
    const auto weight = c.has_weight ? to_vector(weight_) : std::vector<double>(size, 1);
    const auto bias = c.has_bias ? to_vector(bias_) : std::vector<double>(size, 0);
    const auto n = static_cast<double>(c.size);
    for (std::size_t begin = 0; begin < x.size(); begin += size) {
      double sum = 0, squares = 0, sum_g = 0, sum_gz = 0;
      for (std::size_t i = 0; i < size; ++i) sum += x[begin + i];
      const double m = sum / n;
      for (std::size_t i = 0; i < size; ++i) squares += (x[begin + i] - m) * (x[begin + i] - m);
      const double r = 1 / std::sqrt(squares / n + eps);
      mean.push_back(m);
      rstd.push_back(r);
      for (std::size_t i = 0; i < size; ++i) {
        const double z = (x[begin + i] - m) * r, g = dy[begin + i] * weight[i];
        y.push_back(z * weight[i] + bias[i]);
        d_weight[i] += dy[begin + i] * z;
        d_bias[i] += dy[begin + i];
        sum_g += g;
        sum_gz += g * z;
      }
      for (std::size_t i = 0; i < size; ++i) {
        const double z = (x[begin + i] - m) * r, g = dy[begin + i] * weight[i];
        dx.push_back(r * (g - sum_g / n - z * sum_gz / n));
        dx_scale += r * g * r * g;
      }
    }
    dx_scale = std::sqrt(dx_scale);
  }
};

void check(const Case& c, Generator& random) {
  SCOPED_TRACE(fmt::format("{} rows of {} in {}, parameters in {}: weight {}, bias {}", c.rows,
                           c.size, to_string(c.dtype), to_string(c.own), c.has_weight, c.has_bias));
  Guarded guarded;
  const auto normal = [&](const Shape& shape, DType dtype, double shift = 0) {
    return guarded((randn(shape, {float64}, random) + shift).to(dtype), random);
  };
  const auto poisoned = [&](const Shape& shape, DType dtype) {
    return guarded(test::poisoned(shape, dtype), random);
  };
  const Shape all{c.rows, c.size}, columns{c.size}, rows{c.rows};
  const Tensor x = normal(all, c.dtype, 3), dy = normal(all, c.dtype),
               weight = c.has_weight ? normal(columns, c.own) : Tensor(),
               bias = c.has_bias ? normal(columns, c.own) : Tensor();
  const Tensor y = poisoned(all, c.dtype), dx = poisoned(all, c.dtype),
               mean = poisoned(rows, float64), rstd = poisoned(rows, float64),
               d_weight = c.has_weight ? poisoned(columns, c.own) : Tensor(),
               d_bias = c.has_bias ? poisoned(columns, c.own) : Tensor();
  const Reference expected(c, x, weight, bias, dy);

  table().forward(x, weight, bias, eps, y, mean, rstd);
  EXPECT_LE(relative_error(to_vector(y), expected.y), tolerance(c.dtype));
  const double wide = c.dtype == float64 ? 1e-12 : 2e-6;
  EXPECT_LE(relative_error(to_vector(mean), expected.mean), wide);
  EXPECT_LE(relative_error(to_vector(rstd), expected.rstd), wide);

  table().input_grad(dy, x, mean, rstd, weight, dx);
  const auto expect_dx = [&](const Tensor& result) {
    const std::vector<double> values = to_vector(result);
    double gap = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      gap += (values[i] - expected.dx[i]) * (values[i] - expected.dx[i]);
    EXPECT_LE(std::sqrt(gap), tolerance(c.dtype) * expected.dx_scale);
  };
  expect_dx(dx);
  const double sums = c.dtype == float64 && c.own == float64 ? 1e-12 : 5e-6;
  if (c.has_weight || c.has_bias) table().parameter_grad(dy, x, mean, rstd, d_weight, d_bias);
  if (c.has_weight) {
    EXPECT_LE(relative_error(to_vector(d_weight), expected.d_weight), sums);
  }
  if (c.has_bias) {
    EXPECT_LE(relative_error(to_vector(d_bias), expected.d_bias), sums);
  }
  table().input_grad(dy, x, mean, rstd, weight, dy);  // In place.
  expect_dx(dy);
  guarded.expect_intact();
}

TEST(LayerNormKernels, MatchTheDefinition) {
  Generator random(701);
  for (const auto& [rows, size] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {1, 7}, {5, 16}, {33, 33}, {300, 5}, {40, 130}, {2, 3000}, {9, 1024}})
    for (const DType dtype : test::trained_dtypes())
      for (const DType own : {float32, float64}) {
        const bool has_weight = random.below(4) != 0, has_bias = random.below(4) != 0;
        check({rows, size, dtype, own, has_weight, has_bias}, random);
      }
}

TEST(LayerNormKernels, RandomSizes) {
  Generator random(702);
  const auto dtypes = test::trained_dtypes();
  for (int i = 0; i < (test::emulated() ? 15 : 60); ++i)
    check({.rows = 1 + random.below(70),
           .size = 1 + random.below(random.below(3) == 0 ? 900 : 40),
           .dtype = dtypes[static_cast<std::size_t>(
               random.below(static_cast<std::int64_t>(dtypes.size())))],
           .own = random.below(2) == 0 ? float32 : float64,
           .has_weight = random.below(2) == 0,
           .has_bias = random.below(2) == 0},
          random);
}

// Each row begins with a value that is a thousand times the others. Float32 rounds the sum of the
// deviations by 3e-5 for each value once the outlier is in it, so their mean by 1e-6 at most in
// these rows, and by 1e-4 without a correction.
TEST(LayerNormKernels, AnOutlierCostsTheOthersNoPrecision) {
  Generator random(703);
  for (const std::int64_t size : {33, 198, 1000, 3000}) {
    const std::int64_t rows = 8;
    const Tensor x = randn({rows, size}, {}, random), y = test::poisoned({rows, size}, float32),
                 mean = test::poisoned({rows}, float64), rstd = test::poisoned({rows}, float64);
    for (std::int64_t r = 0; r < rows; ++r) x.data<float>()[r * size] = 1000;
    table().forward(x, Tensor(), Tensor(), eps, y, mean, rstd);
    const Reference expected({rows, size, float32, float32, false, false}, x, Tensor(), Tensor(),
                             zeros({rows, size}));
    const std::vector<double> values = to_vector(y);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double one = expected.rstd[i / static_cast<std::size_t>(size)];  // 1 in units of y.
      ASSERT_NEAR(values[i], expected.y[i], 2e-6 * std::max(one, std::abs(expected.y[i])))
          << "element " << i << " in rows of " << size;
    }
  }
}

TEST(LayerNormKernels, WithoutRowsTheParameterGradientsAreZero) {
  const Tensor none = empty({0, 4}), statistics = empty({0}, {float64}),
               d_weight = test::poisoned({4}, float32), d_bias = test::poisoned({4}, float32);
  table().forward(none, ones({4}), zeros({4}), eps, none, statistics, statistics);
  table().input_grad(none, none, statistics, statistics, ones({4}), none);
  table().parameter_grad(none, none, statistics, statistics, d_weight, d_bias);
  EXPECT_EQ(to_vector(d_weight), std::vector<double>(4, 0));
  EXPECT_EQ(to_vector(d_bias), std::vector<double>(4, 0));
}

}  // namespace
}  // namespace tutti::layer_norm_test
