// Pooling kernels against a plain float64 computation over random shapes, layouts and dtypes.
#include "kernels/compare.h"
#include "kernels/tables.h"

#include <gtest/gtest.h>

#include <array>

namespace tutti::pooling_test {
namespace {

using kernels::PoolOptions;
using test::normal;
using test::pick;
using test::poisoned;
using test::relative_error;
using test::Threads;

constexpr MemoryFormat formats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};

struct Case {
  Shape x, y;
  PoolOptions options;
  std::string text() const {
    return "x " + to_string(x) + " kernel " + to_string(options.kernel) + " stride " +
           to_string(options.stride) + " padding " + to_string(options.padding);
  }
};

Case random_case(int spatial) {
  Case c;
  const std::array<std::int64_t, 4> channels{pick(1, 7), pick(1, 7), pick(30, 70), 32 * pick(1, 2)};
  c.x = {pick(1, 3), channels[static_cast<std::size_t>(pick(0, 3))]};
  c.y = c.x;
  c.options.count_include_pad = pick(0, 1) == 0;
  for (int d = 0; d < spatial; ++d) {
    const std::int64_t kernel = pick(1, 4), stride = pick(1, 4), padding = pick(0, kernel / 2),
                       in = pick(kernel, 9);
    c.x.push_back(in);
    const std::int64_t beyond = in + 2 * padding - kernel, out = beyond / stride + 1;
    // A last window that reaches beyond the padding, as in ceil_mode.
    const bool one_more = beyond % stride != 0 && out * stride < in + padding && pick(0, 1) == 0;
    c.y.push_back(out + one_more);
    c.options.kernel.push_back(kernel);
    c.options.stride.push_back(stride);
    c.options.padding.push_back(padding);
  }
  return c;
}

// Calls body(output, first input and end of its window per dimension) for every output of one (n,
// c) plane of three spatial dimensions, given a function from (dimension, output position) to the
// window.
using SpatialSizes = std::array<std::int64_t, 3>;
struct Plane {
  SpatialSizes in{1, 1, 1}, out{1, 1, 1};
  Plane(const Shape& x, const Shape& y) {
    for (int d = 2; d < x.size(); ++d) {
      in[static_cast<std::size_t>(3 - x.size() + d)] = x[d];
      out[static_cast<std::size_t>(3 - x.size() + d)] = y[d];
    }
  }
  std::int64_t in_size() const { return in[0] * in[1] * in[2]; }
  std::int64_t out_size() const { return out[0] * out[1] * out[2]; }
};

// dense[o * in + i] is the weight of input i in output o: an average pooling as a matrix, built
// from its definition.
template <class Weight>
std::vector<double> matrix(const Plane& plane, Weight&& weight) {
  std::vector<double> dense(static_cast<std::size_t>(plane.in_size() * plane.out_size()), 0.0);
  for (std::int64_t o = 0; o < plane.out_size(); ++o)
    for (std::int64_t i = 0; i < plane.in_size(); ++i) {
      const SpatialSizes at{o / (plane.out[2] * plane.out[1]), o / plane.out[2] % plane.out[1],
                            o % plane.out[2]};
      const SpatialSizes from{i / (plane.in[2] * plane.in[1]), i / plane.in[2] % plane.in[1],
                              i % plane.in[2]};
      double product = 1;
      for (int d = 0; d < 3; ++d)
        product *= weight(d, at[static_cast<std::size_t>(d)], from[static_cast<std::size_t>(d)]);
      dense[static_cast<std::size_t>(o * plane.in_size() + i)] = product;
    }
  return dense;
}

// out = matrix * in for every plane, or in = transpose * out.
Tensor apply(const std::vector<double>& dense, const Plane& plane, const Tensor& values,
             const Shape& to, bool transposed) {
  const std::vector<double> v = to_vector(values);
  const std::int64_t rows = transposed ? plane.in_size() : plane.out_size(),
                     columns = transposed ? plane.out_size() : plane.in_size();
  std::vector<double> result;
  for (std::int64_t p = 0; p < to[0] * to[1]; ++p)
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (std::int64_t c = 0; c < columns; ++c)
        sum += dense[static_cast<std::size_t>(transposed ? c * rows + r : r * columns + c)] *
               v[static_cast<std::size_t>(p * columns + c)];
      result.push_back(sum);
    }
  return tensor(result, to, {float64});
}

double tolerance_of(DType dtype) {
  return dtype == float64 ? 1e-14 : dtype == float32 ? 5e-7 : 4e-3;
}

TEST(AveragePooling, IsTheMatrixOfItsDefinition) {
  const auto& table = test::pooling();
  for (int i = 0; i < 36; ++i) {
    const Threads threads(i < 6 ? 2 : 1);
    const Case c = random_case(1 + i % 3);
    SCOPED_TRACE(c.text());
    const Plane plane(c.x, c.y);
    const int skip = 3 - c.options.kernel.size();
    const auto dense = matrix(plane, [&](int d, std::int64_t o, std::int64_t in) {
      if (d < skip) return 1.0;
      const std::int64_t k = c.options.kernel[d - skip],
                         start = o * c.options.stride[d - skip] - c.options.padding[d - skip];
      if (in < start || in >= start + k) return 0.0;
      const std::int64_t size = c.x[d - skip + 2],
                         counted = c.options.count_include_pad ? c.options.padding[d - skip] : 0;
      std::int64_t divisor = 0;
      for (std::int64_t j = start; j < start + k; ++j)
        divisor += j >= -counted && j < size + counted;
      return 1.0 / static_cast<double>(divisor);
    });
    for (DType dtype : test::trained_dtypes())
      for (MemoryFormat format : formats) {
        const Tensor x = normal(c.x, dtype, format), dy = normal(c.y, dtype, format);
        const Tensor y = poisoned(c.y, dtype, format), dx = poisoned(c.x, dtype, format);
        table.average_forward(x, c.options, y);
        table.average_backward(dy, c.options, dx);
        EXPECT_LE(relative_error(y, apply(dense, plane, x, c.y, false)), tolerance_of(dtype));
        EXPECT_LE(relative_error(dx, apply(dense, plane, dy, c.x, true)), tolerance_of(dtype));
      }
  }
}

TEST(AdaptiveAveragePooling, IsTheMatrixOfItsDefinition) {
  const auto& table = test::pooling();
  for (int i = 0; i < 24; ++i) {
    const Threads threads(i < 6 ? 2 : 1);
    Shape x_shape{pick(1, 3), pick(1, 40)}, y_shape = x_shape;
    for (int d = 0; d < 1 + i % 3; ++d) {
      x_shape.push_back(pick(1, 8));
      y_shape.push_back(pick(1, 9));  // may be more than the input
    }
    SCOPED_TRACE(to_string(x_shape) + " to " + to_string(y_shape));
    const Plane plane(x_shape, y_shape);
    const auto dense = matrix(plane, [&](int d, std::int64_t o, std::int64_t in) {
      const auto size = static_cast<double>(plane.in[static_cast<std::size_t>(d)]),
                 outputs = static_cast<double>(plane.out[static_cast<std::size_t>(d)]),
                 at = static_cast<double>(o);
      const double begin = std::floor(at * size / outputs),
                   end = std::ceil((at + 1) * size / outputs);
      const auto position = static_cast<double>(in);
      return position >= begin && position < end ? 1 / (end - begin) : 0.0;
    });
    for (DType dtype : test::trained_dtypes())
      for (MemoryFormat format : formats) {
        const Tensor x = normal(x_shape, dtype, format), dy = normal(y_shape, dtype, format);
        const Tensor y = poisoned(y_shape, dtype, format), dx = poisoned(x_shape, dtype, format);
        table.average_forward(x, {}, y);
        table.average_backward(dy, {}, dx);
        EXPECT_LE(relative_error(y, apply(dense, plane, x, y_shape, false)), tolerance_of(dtype));
        EXPECT_LE(relative_error(dx, apply(dense, plane, dy, x_shape, true)), tolerance_of(dtype));
      }
  }
}

// The value and the first position of the largest element of every window of one plane, and the
// gradient.
void check_max(const Case& c, const Tensor& x, DType dtype, MemoryFormat format) {
  const auto& table = test::pooling();
  const Tensor y = poisoned(c.y, dtype, format), y_alone = poisoned(c.y, dtype, format);
  const Tensor index = empty(c.y, {kernels::pool_index_dtype(c.options.kernel)}, format);
  const Tensor dy = normal(c.y, dtype, format), dx = poisoned(c.x, dtype, format);
  table.max_forward(x, c.options, y, index);
  table.max_forward(x, c.options, y_alone, {});
  table.max_backward(dy, index, c.options, dx);

  const Plane plane(c.x, c.y);
  const int skip = 3 - c.options.kernel.size();
  const auto option = [&](const Dims& dims, int d, std::int64_t filler) {
    return d < skip ? filler : dims[d - skip];
  };
  const std::vector<double> from = to_vector(x), gradient = to_vector(dy);
  std::vector<double> expected, expected_dx(from.size(), 0.0), expected_index;
  for (std::int64_t p = 0; p < c.x[0] * c.x[1]; ++p)
    for (std::int64_t o = 0; o < plane.out_size(); ++o) {
      const SpatialSizes at{o / (plane.out[2] * plane.out[1]), o / plane.out[2] % plane.out[1],
                            o % plane.out[2]};
      std::int64_t best = -1, position = 0;
      for (std::int64_t i = 0; i < plane.in_size();
           ++i) {  // row-major, so the first of equals stays
        const SpatialSizes in{i / (plane.in[2] * plane.in[1]), i / plane.in[2] % plane.in[1],
                              i % plane.in[2]};
        bool inside = true;
        for (int d = 0; d < 3; ++d) {
          const auto s = static_cast<std::size_t>(d);
          const std::int64_t start = at[s] * option(c.options.stride, d, 1) -
                                     option(c.options.padding, d, 0);
          inside &= in[s] >= start && in[s] < start + option(c.options.kernel, d, 1);
        }
        if (!inside) continue;
        const double value = from[static_cast<std::size_t>(p * plane.in_size() + i)];
        const double largest = best < 0 ? 0 : from[static_cast<std::size_t>(best)];
        if (best >= 0 && !(value > largest || (std::isnan(value) && !std::isnan(largest))))
          continue;
        best = p * plane.in_size() + i;
        position = 0;
        for (int d = 0; d < 3; ++d) {
          const auto s = static_cast<std::size_t>(d);
          const std::int64_t start = at[s] * option(c.options.stride, d, 1) -
                                     option(c.options.padding, d, 0);
          position = position * option(c.options.kernel, d, 1) + in[s] - start;
        }
      }
      expected_index.push_back(static_cast<double>(position));
      expected.push_back(from[static_cast<std::size_t>(best)]);
      expected_dx[static_cast<std::size_t>(best)] += gradient[expected.size() - 1];
    }
  const std::vector<double> values = to_vector(y), alone = to_vector(y_alone),
                            positions = to_vector(index);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(values[i]));
      EXPECT_TRUE(std::isnan(alone[i]));
    } else {
      EXPECT_EQ(values[i], expected[i]);
      EXPECT_EQ(alone[i], expected[i]);
    }
    EXPECT_EQ(positions[i], expected_index[i]);
  }
  EXPECT_LE(relative_error(dx, tensor(expected_dx, c.x, {float64})), tolerance_of(dtype));
}

TEST(MaxPooling, TakesTheFirstLargestOfEveryWindow) {
  for (int i = 0; i < 36; ++i) {
    const Threads threads(i < 6 ? 2 : 1);
    const Case c = random_case(1 + i % 3);
    SCOPED_TRACE(c.text());
    for (DType dtype : test::trained_dtypes())
      for (MemoryFormat format : formats) {
        check_max(c, normal(c.x, dtype, format), dtype, format);
        // Small integers: many ties.
        check_max(c, randint(3, c.x).to(dtype).contiguous(format), dtype, format);
      }
  }
}

TEST(MaxPooling, LargeWindowsAndNaN) {
  for (const std::int64_t channels : {2, 32}) {
    const Case c{{1, channels, 20, 18}, {1, channels, 2, 1}, {{17, 17}, {2, 2}, {0, 0}, true}};
    EXPECT_EQ(kernels::pool_index_dtype(c.options.kernel), int64);
    for (MemoryFormat format : formats) {
      check_max(c, normal(c.x, float32, format), float32, format);
      const Tensor x = normal(c.x, float32, format);
      x.select(2, 5).fill_(std::numeric_limits<double>::quiet_NaN());
      check_max(c, x, float32, format);
    }
  }
}

TEST(MaxPooling, PropagatesNaNForwardAndBackward) {
  for (int i = 0; i < 12; ++i) {
    const Threads threads(1 + i % 2);
    const Case c = random_case(1 + i % 3);
    SCOPED_TRACE(c.text());
    for (DType dtype : test::trained_dtypes())
      for (MemoryFormat format : formats) {
        const Tensor values = normal(c.x, float64);
        for (std::int64_t n = 1 + i % 2; n-- > 0;)
          values.data<double>()[pick(0, values.numel() - 1)] = NAN;
        check_max(c, values.to(dtype).contiguous(format), dtype, format);
      }
  }
}

// The windows of a 5 x 5 kernel with stride 1 overlap 25 times. Equal gradients in bfloat16 would
// stop growing at a power of two, and those of the maximum all go to one element.
void check_overlapping_sums(const Shape& shape, DType dtype, MemoryFormat format) {
  const PoolOptions options{{5, 5}, {1, 1}, {2, 2}, true};
  const Tensor x = zeros(shape, {dtype}).contiguous(format), y = poisoned(shape, dtype, format),
               dx = poisoned(shape, dtype, format),
               dy = full(shape, 1.015625, {dtype}).contiguous(format),
               index = empty(shape, {uint8}, format);
  x.select(2, 5).select(2, 5).fill_(1);
  test::pooling().max_forward(x, options, y, index);
  test::pooling().max_backward(dy, index, options, dx);
  const double expected = scalar(25 * 1.015625, {dtype}).item<double>();
  for (const double v : to_vector(dx.select(2, 5).select(2, 5))) EXPECT_EQ(v, expected);
  test::pooling().average_backward(dy, options, dx);
  const double average = scalar(1.015625, {dtype}).item<double>();
  for (const double v : to_vector(dx.select(2, 5).select(2, 5)))
    EXPECT_NEAR(v, average, 1e-6 * average);
}

TEST(Pooling, SumsTheGradientsOfOverlappingWindowsInFloat32) {
  for (const std::int64_t channels : {40, 64})
    for (DType dtype : test::trained_dtypes())
      for (MemoryFormat format : formats)
        check_overlapping_sums({1, channels, 11, 11}, dtype, format);
}

TEST(PoolingKernels, TheMaximumOfInfinitelySmallNumbersIsOne) {
  for (const DType dtype : test::trained_dtypes()) {
    const Tensor x = full({1, 2, 4}, -INFINITY, {.dtype = dtype}), y = poisoned({1, 2, 2}, dtype);
    test::pooling().max_forward(x, {{2}, {2}, {0}, true}, y, {});
    EXPECT_EQ(to_vector(y), std::vector<double>(4, -INFINITY)) << to_string(dtype);
  }
}

// One by one, the sum of 8192 equal numbers errs by 2e-5 in float32.
TEST(PoolingKernels, LongWindowsAreNotAddedOneByOne) {
  const Tensor x = full({1, 2, 3, 8192}, 0.1), y = empty({1, 2, 3, 1});
  test::pooling().average_forward(x, {.kernel = {1, 8192}, .stride = {1, 1}, .padding = {0, 0}}, y);
  for (const double value : to_vector(y)) EXPECT_NEAR(value / double{0.1f}, 1, 5e-6);
  test::pooling().average_forward(x, {}, y.fill_(7));
  for (const double value : to_vector(y)) EXPECT_NEAR(value / double{0.1f}, 1, 5e-6);
}

}  // namespace
}  // namespace tutti::pooling_test
