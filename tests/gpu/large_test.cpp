// Tests our kernels on tensors of more than 2^31 elements (2^32 elements of one byte), where a
// 32-bit index would overflow. There is no reference of that size: inputs are made on the device
// from a short vector for the rows and one for the columns, so that a formula gives each result
// from its indices. The tests compare the first and last elements, those around 2^31 and 2^32, some
// random ones, and sums over all elements. Suite Large needs 5 to 19 GB of device memory and is
// skipped if the device has less. LargeInSmall runs the same code on a few thousand elements, also
// in the emulator, to show that the formulas are right.
#include "../distributed/messages.h"
#include "../test_device.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/core/random.h>
#include <tutti/kernels/kernels.h>
#include <tutti/nn/batch_norm/layer.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <ostream>

namespace tutti::large_test {
namespace {

using kernels::Binary;
using kernels::Unary;
using test::test_device;
using Index = std::int64_t;

// The shape (rows, channels, edge, edge), or (rows, columns).
struct Size {
  Index rows, channels, edge;
  Index columns() const { return channels * edge * edge; }
  Index count() const { return rows * columns(); }
};
constexpr Size large{(1 << 15) + 1, 64, 32}, small{35, 16, 4};
static_assert(large.rows * large.channels * large.edge * large.edge ==
              (Index{1} << 31) + (1 << 16));

TensorOptions there(DType dtype) { return {dtype, test_device()}; }
const kernels::Elementwise& elementwise() { return kernels::on(test_device()).elementwise; }

Tensor numbers(Index n, const std::function<double(Index)>& f, const Shape& shape,
               DType dtype = bfloat16) {
  std::vector<double> values;
  for (Index i = 0; i < n; ++i) values.push_back(f(i));
  return tensor(values, shape, {dtype}).to(test_device());
}

// These functions return the contributions of an element's row and column. Neither repeats after
// 2^15 or 2^16 rows, and the sum of both is exact in 8 bits.
double of_row(Index r) { return static_cast<double>(r * 37 % 127); }
double of_column(Index c) { return static_cast<double>(c * 11 % 64); }

Tensor pattern(Index rows, Index columns, DType dtype) {
  const Tensor out = empty({rows, columns}, there(dtype));
  const Tensor down = numbers(rows, of_row, {rows, 1}, dtype),
               along = numbers(columns, of_column, {1, columns}, dtype);
  elementwise().binary(Binary::add, down, along, out);
  return out;
}
Tensor pattern(const Size& s, DType dtype = bfloat16) {
  return pattern(s.rows, s.columns(), dtype);
}

// The sum of f(element) over all elements of the pattern.
double sum_over_pattern(
    Index rows, Index columns,
    const std::function<double(double)>& f = [](double v) { return v; }) {
  std::vector<double> of_rows(127), of_columns(64);
  for (Index r = 0; r < rows; ++r) ++of_rows[static_cast<std::size_t>(of_row(r))];
  for (Index c = 0; c < columns; ++c) ++of_columns[static_cast<std::size_t>(of_column(c))];
  double total = 0;
  for (std::size_t a = 0; a < of_rows.size(); ++a)
    for (std::size_t b = 0; b < of_columns.size(); ++b)
      total += of_rows[a] * of_columns[b] * f(static_cast<double>(a + b));
  return total;
}

// The element at position `i` of the memory.
double at(const Tensor& t, Index i) { return t.alias({}, {}, t.offset() + i).item<double>(); }

std::vector<Index> places(Index count) {
  std::vector<Index> result{0, 1, count / 2, count - 2, count - 1};
  for (const Index edge : {Index{1} << 31, Index{1} << 32})
    for (Index i = edge - 2; i < edge + 2 && i < count; ++i) result.push_back(i);
  Generator random(5);
  for (int i = 0; i < 40; ++i) result.push_back(random.below(count));
  return result;
}

// Expects that t, whose rows of `columns` elements are dense, holds f(r, c) at [r, c], up to a
// relative tolerance.
void expect_elements(const Tensor& t, Index columns, const std::function<double(Index, Index)>& f,
                     double tolerance = 0) {
  for (const Index i : places(t.numel())) {
    const double expected = f(i / columns, i % columns);
    EXPECT_NEAR(at(t, i), expected, tolerance * std::abs(expected)) << "element " << i;
  }
}
double as_pattern(Index r, Index c) { return of_row(r) + of_column(c); }

double total(const Tensor& t) {
  const Tensor out = empty(Shape::filled(t.rank(), 1), there(float64));
  kernels::on(test_device()).reduce.reduce(kernels::Reduction::sum, t, out);
  return out.item<double>();
}

constexpr double rounded = 0x1p-7;  // the relative error of a few roundings to bfloat16

// ---- the families of kernels

void copies(const Size& s) {
  const Index rows = 2 * s.rows - 1, columns = s.columns();  // more than 2^32 bytes
  const double sum = sum_over_pattern(rows, columns);
  Tensor x = pattern(rows, columns, uint8), wide = empty({rows, columns}, there(bfloat16));
  expect_elements(x, columns, as_pattern);
  elementwise().copy(x, wide);
  expect_elements(wide, columns, as_pattern);
  EXPECT_EQ(total(wide), sum);
  wide = {};
  Tensor turned = empty({columns, rows}, there(uint8));
  elementwise().copy(x.transpose(0, 1), turned);
  expect_elements(turned, rows, [](Index c, Index r) { return as_pattern(r, c); });
  x = {};
  wide = empty({columns, rows}, there(bfloat16));
  elementwise().copy(turned, wide);
  EXPECT_EQ(total(wide), sum);
  wide = {};
  turned.fill_(7);
  expect_elements(turned, rows, [](Index, Index) { return 7.0; });
}

void elementwise_functions(const Size& s) {
  const Tensor x = pattern(s), y = empty(x.shape(), there(bfloat16)),
               high = empty(x.shape(), there(boolean));
  elementwise().unary(Unary::negate, x, y);
  elementwise().axpy(2, x, y);
  expect_elements(y, s.columns(), as_pattern);
  elementwise().binary_scalar(Binary::subtract, y, 100, false, y);
  elementwise().unary(Unary::relu, y, y);
  elementwise().binary_scalar(Binary::greater_equal, x, 150, false, high);
  elementwise().where(high, x, y, y);
  const auto f = [](double v) { return v >= 150 ? v : std::max(v - 100, 0.0); };
  expect_elements(y, s.columns(), [&](Index r, Index c) { return f(as_pattern(r, c)); });
  EXPECT_EQ(total(y), sum_over_pattern(s.rows, s.columns(), f));
}

void reductions(const Size& s) {
  const auto& reduce = kernels::on(test_device()).reduce;
  const Index n = s.count(), columns = s.columns();
  const Tensor x = pattern(s);
  double sum_of_rows = 0, sum_of_columns = 0;
  for (Index r = 0; r < s.rows; ++r) sum_of_rows += of_row(r);
  for (Index c = 0; c < columns; ++c) sum_of_columns += of_column(c);
  EXPECT_EQ(total(x), sum_over_pattern(s.rows, columns));
  const Tensor down = empty({1, columns}, there(float64)),
               along = empty({s.rows, 1}, there(float64));
  reduce.reduce(kernels::Reduction::sum, x, down);
  reduce.reduce(kernels::Reduction::sum, x, along);
  expect_elements(down, columns, [&](Index, Index c) {
    return sum_of_rows + static_cast<double>(s.rows) * of_column(c);
  });
  expect_elements(along, 1, [&](Index r, Index) {
    return sum_of_columns + static_cast<double>(columns) * of_row(r);
  });
  x.alias({}, {}, n - 2).fill_(250);
  const Tensor most = empty({1, 1}, there(bfloat16));
  reduce.reduce(kernels::Reduction::max, x, most);
  EXPECT_EQ(most.item<double>(), 250);
  const Tensor each = empty({s.rows, 1}, there(int64));
  reduce.topk(x, 1, each);
  Index first = 0;
  for (Index c = 0; c < columns; ++c)
    if (of_column(c) > of_column(first)) first = c;
  expect_elements(each, 1, [&](Index r, Index) {
    return static_cast<double>(r == s.rows - 1 ? columns - 2 : first);
  });
}

void softmax_of_rows(const Size& s) {
  const auto scale = [](Index r) { return static_cast<double>(r % 3); };
  const auto slope = [](Index c) { return of_column(c) / 16; };
  const Tensor x = empty({s.rows, s.columns()}, there(bfloat16)),
               y = empty(x.shape(), there(bfloat16));
  const Tensor down = numbers(s.rows, scale, {s.rows, 1}),
               along = numbers(s.columns(), slope, {1, s.columns()});
  elementwise().binary(Binary::multiply, down, along, x);
  const auto& softmax = kernels::on(test_device()).softmax;
  softmax.forward(x, 1, false, y);
  double sums[3] = {}, means[3] = {};
  for (int k = 0; k < 3; ++k) {
    for (Index c = 0; c < s.columns(); ++c) {
      const double each = std::exp(k * slope(c));
      sums[k] += each, means[k] += k * slope(c) * each;
    }
    means[k] /= sums[k];
  }
  const auto p = [&](Index r, Index c) { return std::exp(scale(r) * slope(c)) / sums[r % 3]; };
  expect_elements(y, s.columns(), p, rounded);
  EXPECT_NEAR(total(y) / static_cast<double>(s.rows), 1, rounded);
  // x also serves as the gradient of y.
  const Tensor dx = empty(x.shape(), there(bfloat16));
  softmax.backward(x, y, 1, false, dx);
  for (const Index i : places(s.count())) {
    const Index r = i / s.columns(), c = i % s.columns();
    EXPECT_NEAR(at(dx, i), p(r, c) * (scale(r) * slope(c) - means[r % 3]), 8 * rounded * p(r, c))
        << "element " << i;
  }
}

// The position in (N, C, H, W) of an element of the memory.
struct Position {
  Index n, c, h, w;
  Position(Index i, const Shape& shape, MemoryFormat format) {
    const bool last = format == MemoryFormat::channels_last;
    if (last) c = i % shape[1], i /= shape[1];
    w = i % shape[3], i /= shape[3];
    h = i % shape[2], i /= shape[2];
    if (!last) c = i % shape[1], i /= shape[1];
    n = i;
  }
};

void pooling(const Size& s) {
  const auto& pool = kernels::on(test_device()).pooling;
  const kernels::PoolOptions options{.kernel = {2, 2}, .stride = {2, 2}, .padding = {0, 0}};
  const Shape shape{s.rows, s.channels, s.edge, s.edge},
      half{s.rows, s.channels, s.edge / 2, s.edge / 2};
  const auto inside = [&](Index c, Index h, Index w) {
    return of_column((c * s.edge + h) * s.edge + w);
  };
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    SCOPED_TRACE(format == MemoryFormat::contiguous ? "contiguous" : "channels_last");
    Tensor x = empty(shape, there(bfloat16), format);
    elementwise().binary(Binary::add, numbers(s.rows, of_row, {s.rows, 1, 1, 1}),
                         numbers(s.columns(), of_column, {1, s.channels, s.edge, s.edge}), x);
    const Tensor y = empty(half, there(bfloat16), format),
                 index = empty(half, there(uint8), format);
    const auto expect_windows = [&](const std::function<double(const double(&)[4])>& f,
                                    double tolerance) {
      for (const Index i : places(y.numel())) {
        const Position p(i, half, format);
        double window[4];
        for (int k = 0; k < 4; ++k) window[k] = inside(p.c, 2 * p.h + k / 2, 2 * p.w + k % 2);
        const double expected = of_row(p.n) + f(window);
        EXPECT_NEAR(at(y, i), expected, tolerance * expected) << "element " << i;
      }
    };
    pool.average_forward(x, options, y);
    expect_windows([](const double(&v)[4]) { return (v[0] + v[1] + v[2] + v[3]) / 4; }, rounded);
    pool.max_forward(x, options, y, index);
    expect_windows([](const double(&v)[4]) { return std::max({v[0], v[1], v[2], v[3]}); }, 0);
    const Tensor whole = empty({s.rows, s.channels, 1, 1}, there(bfloat16));
    pool.average_forward(x, {}, whole);
    for (const Index i : places(whole.numel())) {
      double mean = 0;
      for (Index p = 0; p < s.edge * s.edge; ++p)
        mean += inside(i % s.channels, 0, p) / static_cast<double>(s.edge * s.edge);
      EXPECT_NEAR(at(whole, i), of_row(i / s.channels) + mean, rounded * 200) << "element " << i;
    }
    x = {};
    const Tensor dx = empty(shape, there(bfloat16), format);
    y.fill_(1);
    pool.max_backward(y, index, options, dx);
    EXPECT_EQ(total(dx), static_cast<double>(y.numel()));
    for (const Index i : places(dx.numel())) {
      const Position p(i, shape, format);
      Index best = 0;
      const auto in_window = [&](Index k) {
        return inside(p.c, p.h / 2 * 2 + k / 2, p.w / 2 * 2 + k % 2);
      };
      for (Index k = 1; k < 4; ++k)
        if (in_window(k) > in_window(best)) best = k;
      EXPECT_EQ(at(dx, i), best == p.h % 2 * 2 + p.w % 2) << "element " << i;
    }
  }
  // The tensor has a single row, so that its positions and channels are one dimension of threads.
  const Index channels = 65, width = s.count() / channels;
  const Index all = channels * width;
  const Tensor row = pattern(s).alias({1, channels, 1, width}, {all, 1, all, channels}, 0);
  const Tensor same = empty_like(row);
  pool.average_forward(row, {.kernel = {1, 1}, .stride = {1, 1}, .padding = {0, 0}}, same);
  expect_elements(same, s.columns(), as_pattern);
}

void batch_norm(const Size& s) {
  const Shape shape{s.rows, s.channels, s.edge, s.edge};
  const Index positions = s.edge * s.edge;
  const double count = static_cast<double>(s.rows * positions);
  // x = mean + deviation v w and dy = g + h w, where mean, deviation and g depend on the channel, v
  // and h on the sample, and w = 1 or -1 on the position, equally often. So all sums are known.
  const auto mean = [](Index c) { return static_cast<double>(c % 5 - 2); };
  const auto deviation = [](Index c) { return c % 3 == 0 ? 0.5 : static_cast<double>(c % 3); };
  const auto g = [](Index c) { return static_cast<double>(c % 7); };
  const auto v = [](Index n) { return n % 3 == 0 ? 2.0 : n % 2 ? 1.0 : -1.0; };
  const auto h = [](Index n) { return static_cast<double>(n * 3 % 7 - 2); };
  const auto sign = [](Index p) { return p % 2 ? 1.0 : -1.0; };
  double squares = 0, products = 0;  // means over the samples
  for (Index n = 0; n < s.rows; ++n) {
    squares += v(n) * v(n) / static_cast<double>(s.rows);
    products += h(n) * v(n) / static_cast<double>(s.rows);
  }
  const auto of_samples = [&](const auto& f) { return numbers(s.rows, f, {s.rows, 1, 1, 1}); };
  const auto of_channels = [&](const auto& f) {
    return numbers(s.channels, f, {1, s.channels, 1, 1});
  };
  const Tensor signs = numbers(positions, sign, {1, 1, s.edge, s.edge});
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    SCOPED_TRACE(format == MemoryFormat::contiguous ? "contiguous" : "channels_last");
    const Tensor x = empty(shape, there(bfloat16), format),
                 dy = empty(shape, there(bfloat16), format);
    elementwise().binary(Binary::multiply, of_samples(v) * signs, of_channels(deviation), x);
    elementwise().binary(Binary::add, x, of_channels(mean), x);
    elementwise().binary(Binary::add, of_samples(h) * signs, of_channels(g), dy);
    nn::BatchNorm2d bn({.channels = s.channels, .eps = 0});
    bn.to(test_device());
    x.requires_grad_();
    const Tensor y = bn(x);
    y.backward(dy);
    const Tensor dx = x.grad();
    for (const Index i : places(s.count())) {
      const Position p(i, shape, format);
      const double w = sign(p.h * s.edge + p.w), var = deviation(p.c) * deviation(p.c) * squares,
                   rstd = 1 / std::sqrt(var);
      const double of_x = deviation(p.c) * v(p.n) * w;
      EXPECT_NEAR(at(y, i), of_x * rstd, rounded * 2) << "element " << i;
      const double expected = rstd * (h(p.n) * w - of_x / var * deviation(p.c) * products);
      EXPECT_NEAR(at(dx, i), expected, rounded * 4 * rstd) << "element " << i;
    }
    const auto means = to_vector(bn.running_mean), vars = to_vector(bn.running_var),
               d_weight = to_vector(bn.weight.grad()), d_bias = to_vector(bn.bias.grad());
    for (Index c = 0; c < s.channels; ++c) {
      const auto k = static_cast<std::size_t>(c);
      const double var = deviation(c) * deviation(c) * squares;
      EXPECT_NEAR(means[k], 0.1 * mean(c), 1e-6);
      EXPECT_NEAR(vars[k], 0.9 + 0.1 * var * count / (count - 1), 1e-5);
      EXPECT_NEAR(d_bias[k], count * g(c), 1e-5 * count);
      EXPECT_NEAR(d_weight[k], count * deviation(c) * products / std::sqrt(var), 1e-5 * count);
    }
  }
}

void layer_norm(const Size& s) {
  const Index columns = s.columns();
  const auto scale = [](Index r) { return r % 3 == 0 ? -2.0 : static_cast<double>(r % 3); };
  const auto slope = [](Index c) { return static_cast<double>(c * 7 % 8); };
  double mean = 0, mean_slope = 0, var = 0, product = 0, scales = 0;
  const auto n = static_cast<double>(columns);
  for (Index c = 0; c < columns; ++c) mean += of_column(c) / n, mean_slope += slope(c) / n;
  for (Index c = 0; c < columns; ++c) var += (of_column(c) - mean) * (of_column(c) - mean) / n;
  const auto z = [&](Index c) { return (of_column(c) - mean) / std::sqrt(var); };
  for (Index c = 0; c < columns; ++c) product += slope(c) * z(c) / n;
  for (Index r = 0; r < s.rows; ++r) scales += std::abs(scale(r));
  const Tensor of_rows = numbers(s.rows, scale, {s.rows, 1});
  const Tensor x = empty({s.rows, columns}, there(bfloat16)), dy = empty_like(x), y = empty_like(x);
  elementwise().binary(Binary::multiply, of_rows, numbers(columns, of_column, {1, columns}), x);
  elementwise().binary(Binary::multiply, of_rows, numbers(columns, slope, {1, columns}), dy);
  const Tensor means = empty({s.rows}, there(float64)), rstds = empty({s.rows}, there(float64));
  const auto& norm = kernels::on(test_device()).layer_norm;
  norm.forward(x, {}, {}, 0, y, means, rstds);
  expect_elements(
      means, 1, [&](Index r, Index) { return scale(r) * mean; }, 1e-6);
  const auto side = [&](Index r) { return scale(r) < 0 ? -1.0 : 1.0; };
  expect_elements(
      y, columns, [&](Index r, Index c) { return side(r) * z(c); }, rounded);
  const Tensor d_weight = empty({columns}, there(float64)),
               d_bias = empty({columns}, there(float64));
  norm.parameter_grad(dy, x, means, rstds, d_weight, d_bias);
  expect_elements(
      d_weight, 1, [&](Index c, Index) { return scales * slope(c) * z(c); }, 1e-5);
  norm.input_grad(dy, x, means, rstds, {}, dy);
  for (const Index i : places(s.count())) {
    const Index r = i / columns, c = i % columns;
    const double expected = side(r) / std::sqrt(var) * (slope(c) - mean_slope - z(c) * product);
    EXPECT_NEAR(at(dy, i), expected, rounded * 8 / std::sqrt(var)) << "element " << i;
  }
}

void optimizer_steps(const Size& s) {
  const auto& steps = kernels::on(test_device()).optimizer;
  const Tensor p = pattern(s), g = pattern(s);
  const std::vector<Tensor> gradients{g};
  const Tensor squares = empty({1}, there(float64)), norm = empty({1}, there(float64)),
               scale = full({1}, 4, there(float32)), found = zeros({1}, there(float32));
  steps.sums_of_squares(gradients, squares);
  const double sum = sum_over_pattern(s.rows, s.columns(), [](double v) { return v * v; });
  EXPECT_NEAR(squares.item<double>(), sum, 1e-12 * sum);
  steps.clip(gradients, squares, std::sqrt(sum) / 2, norm);
  EXPECT_NEAR(norm.item<double>(), std::sqrt(sum), 1e-12 * std::sqrt(sum));
  expect_elements(
      g, s.columns(), [](Index r, Index c) { return as_pattern(r, c) / 2; }, rounded);
  g.copy_(p);
  steps.unscale(gradients, scale, found);
  expect_elements(g, s.columns(), [](Index r, Index c) { return as_pattern(r, c) / 4; });
  EXPECT_EQ(found.item<float>(), 0);
  const kernels::FusedUpdate update{
      .parameter = p, .gradient = g, .steps = zeros({}, there(int64))};
  const Tensor lr = full({}, 2, there(float64)), zero = zeros({}, there(float64));
  const double* const none = zero.data<double>();
  steps.sgd({.lr = lr.data<double>(),
             .momentum = none,
             .dampening = none,
             .weight_decay = none,
             .nesterov = false},
            {&update, 1});
  expect_elements(p, s.columns(), [](Index r, Index c) { return as_pattern(r, c) / 2; });
  EXPECT_EQ(total(p), sum_over_pattern(s.rows, s.columns()) / 2);
  g.alias({}, {}, s.count() - 1).fill_(INFINITY);
  steps.unscale(gradients, scale, found);
  EXPECT_EQ(found.item<float>(), 1);
}

void random_numbers(const Size& s) {
  Generator random(11), same(11);
  random.next();
  const Tensor x = bernoulli(0.25, {s.count()}, there(uint8), random);
  double ones = 0;
  for (const Index i : places(s.count())) {
    same.set_state({11, 1 + static_cast<std::uint64_t>(i)});
    EXPECT_EQ(at(x, i), same.next() < (1u << 30)) << "element " << i;
  }
  const Tensor wide = empty({s.count()}, there(bfloat16));
  elementwise().copy(x, wide);
  ones = total(wide) / static_cast<double>(s.count());
  EXPECT_NEAR(ones, 0.25, 5 / std::sqrt(static_cast<double>(s.count())));
}

struct Family {
  const char* name;
  void (*check)(const Size&);
  int gigabytes;
};
const Family families[] = {
    {"Copies", copies, 14},        {"Elementwise", elementwise_functions, 11},
    {"Reductions", reductions, 5}, {"Softmax", softmax_of_rows, 14},
    {"Pooling", pooling, 11},      {"BatchNorm", batch_norm, 19},
    {"LayerNorm", layer_norm, 14}, {"Optimizers", optimizer_steps, 9},
    {"Random", random_numbers, 7},
};

// GoogleTest would print the bytes of the struct otherwise.
void PrintTo(const Family& family, std::ostream* to) { *to << family.gigabytes << " GB"; }

class Large : public ::testing::TestWithParam<Family> {};
class LargeInSmall : public ::testing::TestWithParam<Family> {};

std::string name_of(const ::testing::TestParamInfo<Family>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Kernels, Large, ::testing::ValuesIn(families), name_of);
INSTANTIATE_TEST_SUITE_P(Kernels, LargeInSmall, ::testing::ValuesIn(families), name_of);

TEST_P(Large, ComputePastTheReachOf32Bits) {
  const int gigabytes = GetParam().gigabytes;
  if (test::emulated())
    GTEST_SKIP() << "needs " << gigabytes << " GB of device memory; the emulator has 1 GB";
  try {
    empty({Index{gigabytes} << 30}, there(uint8));
  } catch (const DeviceError& error) {
    GTEST_SKIP() << "needs " << gigabytes << " GB of device memory: " << error.what();
  }
  GetParam().check(large);
  allocator(test_device()).trim();
}

TEST_P(LargeInSmall, ComputeTheSame) { GetParam().check(small); }

TEST(LargeSizes, OfASingleDimensionAreRefusedWherePositionsHave32Bits) {
  const Tensor one = ones({1, 1, 1, 1}, there(float32)), y = empty_like(one);
  const Tensor x = one.alias({1, 1, 1, Index{1} << 31}, {0, 0, 0, 0}, 0);
  const auto& pool = kernels::on(test_device()).pooling;
  test::expect_contains(test::message_of<ShapeError>([&] { pool.average_forward(x, {}, y); }),
                        {"pooling", "a size below 2^31", "got 2147483648"});
}

}  // namespace
}  // namespace tutti::large_test
