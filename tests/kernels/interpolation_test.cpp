// Interpolation kernels against the matrix of their definition, over random shapes, layouts and
// dtypes, and the same bits for every number of threads.
#include "kernels/compare.h"
#include "kernels/tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace tutti::interpolation_test {
namespace {

using kernels::InterpolationOptions;
using test::normal;
using test::pick;
using test::poisoned;
using test::relative_error;
using test::Threads;

struct Case {
  Shape x, y;
  InterpolationOptions options;
  std::string text() const {
    return fmt::format("x {} y {} {} align_corners {} factor {}", to_string(x), to_string(y),
                       options.linear ? "linear" : "nearest", options.align_corners,
                       options.factors.empty() ? 0 : options.factors[0]);
  }
};

Case random_case(int spatial, bool linear) {
  Case c;
  c.x = {pick(1, 3), pick(0, 1) == 0 ? pick(1, 20) : 16 * pick(1, 2)};
  c.y = c.x;
  c.options = {.linear = linear, .align_corners = linear && pick(0, 1) == 0};
  const bool has_factors = pick(0, 1) == 0;
  for (int d = 0; d < spatial; ++d) {
    const std::int64_t in = pick(1, 6);
    const double factor =
        std::max(1.0 / static_cast<double>(in), static_cast<double>(pick(2, 30)) / 8);
    if (has_factors) c.options.factors.push_back(factor);
    c.x.push_back(in);
    c.y.push_back(has_factors
                      ? static_cast<std::int64_t>(std::floor(static_cast<double>(in) * factor))
                      : pick(1, 12));
  }
  return c;
}

// The weight of input i in output o: a hat around the position, which is clamped to the input.
double weight(const Case& c, int d, std::int64_t o, std::int64_t i) {
  const auto in = static_cast<double>(c.x[d + 2]), out = static_cast<double>(c.y[d + 2]);
  if (c.options.linear && in == out) return o == i;  // a copy, whatever the factor, as in PyTorch
  const double scale = c.options.align_corners ? (out > 1 ? (in - 1) / (out - 1) : 0)
                       : c.options.factors.empty()
                           ? in / out
                           : 1 / c.options.factors[static_cast<std::size_t>(d)];
  if (!c.options.linear) {
    const float at = static_cast<float>(o) * static_cast<float>(scale);
    return std::min(std::floor(static_cast<double>(at)), in - 1) == static_cast<double>(i);
  }
  const auto position = static_cast<double>(o);
  const double at = c.options.align_corners ? position * scale : (position + 0.5) * scale - 0.5;
  return std::max(0.0, 1 - std::abs(std::clamp(at, 0.0, in - 1) - static_cast<double>(i)));
}

// Multiplies one spatial dimension of (N, C, ...) by the matrix, or by its transpose.
Tensor apply(const Case& c, int d, const Tensor& values, bool transposed) {
  const Tensor last = values.transpose(d + 2, values.rank() - 1).contiguous();
  const std::int64_t from = last.size(-1), to = transposed ? c.x[d + 2] : c.y[d + 2];
  Shape shape = last.shape();
  shape[shape.size() - 1] = to;
  const std::vector<double> v = to_vector(last);
  std::vector<double> result;
  for (std::int64_t row = 0; row < last.numel() / from; ++row)
    for (std::int64_t t = 0; t < to; ++t) {
      double sum = 0;
      for (std::int64_t f = 0; f < from; ++f)
        sum += v[static_cast<std::size_t>(row * from + f)] *
               (transposed ? weight(c, d, f, t) : weight(c, d, t, f));
      result.push_back(sum);
    }
  return tensor(result, shape, {float64}).transpose(d + 2, values.rank() - 1);
}

Tensor expected(const Case& c, const Tensor& values, bool transposed) {
  Tensor result = values.to(float64);
  for (int d = 0; d < c.x.size() - 2; ++d) result = apply(c, d, result, transposed);
  return result;
}

TEST(InterpolationKernels, AreTheMatrixOfTheirDefinition) {
  for (int i = 0; i < 48; ++i) {
    const Threads threads(i < 6 ? 2 : 1);
    const Case c = random_case(1 + i % 3, i % 4 > 0);
    SCOPED_TRACE(c.text());
    for (const DType dtype : test::trained_dtypes())
      for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        const Tensor x = normal(c.x, dtype, format), dy = normal(c.y, dtype, format),
                     y = poisoned(c.y, dtype, format), dx = poisoned(c.x, dtype, format);
        test::interpolation().forward(x, c.options, y);
        test::interpolation().backward(dy, c.options, dx);
        const double tolerance = dtype == float64 ? 1e-13 : dtype == float32 ? 2e-6 : 4e-3;
        EXPECT_LE(relative_error(y, expected(c, x, false)), tolerance) << to_string(dtype);
        EXPECT_LE(relative_error(dx, expected(c, dy, true)), tolerance) << to_string(dtype);
      }
  }
}

TEST(InterpolationKernels, HaveTheSameBitsForEveryNumberOfThreads) {
  const Case c{{2, 21, 9, 13}, {2, 21, 72, 104}, {.linear = true}};
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = normal(c.x, float32, format), dy = normal(c.y, float32, format);
    std::vector<std::vector<double>> results;
    for (const int count : {1, 2, 3}) {
      const Threads threads(count);
      const Tensor y = poisoned(c.y, float32, format), dx = poisoned(c.x, float32, format);
      test::interpolation().forward(x, c.options, y);
      test::interpolation().backward(dy, c.options, dx);
      results.push_back(to_vector(y));
      for (const double v : to_vector(dx)) results.back().push_back(v);
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

}  // namespace
}  // namespace tutti::interpolation_test
