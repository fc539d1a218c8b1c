// Elementwise kernels: every operation, dtype and layout against plain loops in float64.
#include <tutti/core/parallel.h>

#include "random_layout.h"
#include "tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace tutti::elementwise_test {
namespace {

using kernels::Binary;
using kernels::Unary;
using test::broadcastable;
using test::finite_relative_error;
using test::random_layout;
using test::random_shape;

const kernels::Elementwise& table() { return test::elementwise(); }

// The relative error that a result may have: the rounding of the output, with room for exp and
// similar functions in float32.
double tolerance(DType dtype) {
  return dtype == float64    ? 1e-14
         : dtype == float32  ? 4e-7
         : dtype == bfloat16 ? 4e-3
         : dtype == float16  ? 5e-4
                             : 0;
}

Tensor poisoned(const Shape& shape, DType dtype, Generator& generator) {
  const Tensor out = random_layout(zeros(shape, {dtype}), generator);
  out.fill_(is_floating(dtype) ? NAN : 1);
  return out;
}

struct UnaryOp {
  Unary op;
  std::function<double(double)> reference;
};

const std::vector<UnaryOp>& unary_ops() {
  static const std::vector<UnaryOp> ops{
      {Unary::negate, [](double x) { return -x; }},
      {Unary::absolute, [](double x) { return std::abs(x); }},
      {Unary::exp, [](double x) { return std::exp(x); }},
      {Unary::log, [](double x) { return std::log(x); }},
      {Unary::sqrt, [](double x) { return std::sqrt(x); }},
      {Unary::rsqrt, [](double x) { return 1 / std::sqrt(x); }},
      {Unary::square, [](double x) { return x * x; }},
      {Unary::sine, [](double x) { return std::sin(x); }},
      {Unary::cosine, [](double x) { return std::cos(x); }},
      {Unary::tanh, [](double x) { return std::tanh(x); }},
      {Unary::sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }},
      {Unary::relu, [](double x) { return x > 0 || std::isnan(x) ? x : 0; }},
      {Unary::sign, [](double x) { return std::isnan(x) ? x : (x > 0) - (x < 0); }},
      {Unary::softplus,
       [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }},
      {Unary::floor, [](double x) { return std::floor(x); }},
      {Unary::ceil, [](double x) { return std::ceil(x); }},
      {Unary::round, [](double x) { return std::nearbyint(x); }},
  };
  return ops;
}

TEST(ElementwiseKernels, UnaryMatchesPlainLoopsInEveryLayout) {
  Generator generator(101);
  for (int round = 0; round < 4; ++round)
    for (const auto& [op, reference] : unary_ops())
      for (const DType dtype : test::trained_dtypes()) {
        const bool positive = op == Unary::log || op == Unary::sqrt || op == Unary::rsqrt;
        Tensor x = randn(random_shape(generator), {float64}, generator).to(dtype);
        if (positive) table().unary(Unary::absolute, x, x);
        x = random_layout(x, generator);
        const Tensor out = poisoned(x.shape(), dtype, generator);
        table().unary(op, x, out);
        const std::vector<double> in = to_vector(x);
        std::vector<double> got = to_vector(out), expected = in;
        for (double& v : expected) v = reference(v);
        EXPECT_LE(finite_relative_error(got, expected), tolerance(dtype))
            << static_cast<int>(op) << " " << to_string(dtype) << " " << to_string(x.shape());
      }
}

struct BinaryOp {
  Binary op;
  std::function<double(double, double)> reference;
  bool floating_only = false;
};

const std::vector<BinaryOp>& binary_ops() {
  static const std::vector<BinaryOp> ops{
      {Binary::add, [](double x, double y) { return x + y; }},
      {Binary::subtract, [](double x, double y) { return x - y; }},
      {Binary::multiply, [](double x, double y) { return x * y; }},
      {Binary::divide, [](double x, double y) { return x / y; }, true},
      {Binary::power, [](double x, double y) { return std::pow(x, y); }, true},
      {Binary::maximum, [](double x, double y) { return x > y ? x : y; }},
      {Binary::minimum, [](double x, double y) { return x < y ? x : y; }},
      {Binary::equal, [](double x, double y) { return x == y; }},
      {Binary::not_equal, [](double x, double y) { return x != y; }},
      {Binary::less, [](double x, double y) { return x < y; }},
      {Binary::less_equal, [](double x, double y) { return x <= y; }},
      {Binary::greater, [](double x, double y) { return x > y; }},
      {Binary::greater_equal, [](double x, double y) { return x >= y; }},
      {Binary::leaky_relu, [](double x, double slope) { return x > 0 ? x : slope * x; }, true},
      {Binary::relu_grad, [](double g, double y) { return y > 0 ? g : 0; }, true},
      {Binary::sigmoid_grad, [](double g, double y) { return g * y * (1 - y); }, true},
      {Binary::tanh_grad, [](double g, double y) { return g * (1 - y * y); }, true},
  };
  return ops;
}

bool compares(Binary op) { return op >= Binary::equal && op <= Binary::greater_equal; }

TEST(ElementwiseKernels, BinaryMatchesPlainLoopsInEveryLayoutAndBroadcast) {
  Generator generator(102);
  for (int round = 0; round < 3; ++round)
    for (const auto& [op, reference, floating_only] : binary_ops())
      for (const DType dtype : test::trained_dtypes({int64, uint8})) {
        if (floating_only && !is_floating(dtype)) continue;
        const Shape shape = random_shape(generator);
        // Small integers: sums and products fit every dtype, and comparisons meet equal ones.
        const auto operand = [&, of = op](const Shape& s) {
          Tensor x =
              randint(5, s, {float64}, generator)
                  .add_(scalar(of == Binary::power || of == Binary::subtract ? 1 : 0, {float64}));
          return random_layout(x.to(dtype), generator);
        };
        const Tensor a = operand(broadcastable(shape, generator));
        const Tensor b = operand(broadcastable(shape, generator));
        const Tensor out = poisoned(shape, compares(op) ? boolean : dtype, generator);
        const auto x = to_vector(a.expand(shape)), y = to_vector(b.expand(shape));
        table().binary(op, a, b, out);
        std::vector<double> expected(x.size());
        const double wrap = dtype == uint8 ? 256 : 0;  // unsigned arithmetic
        for (std::size_t i = 0; i < x.size(); ++i) {
          expected[i] = reference(x[i], y[i]);
          if (expected[i] < 0 && !compares(op)) expected[i] += wrap;
        }
        EXPECT_LE(finite_relative_error(to_vector(out), expected), tolerance(dtype))
            << static_cast<int>(op) << " " << to_string(dtype) << " " << to_string(shape);
        // The number is the first or the second argument.
        const double number = op == Binary::power ? 2 : 3;
        for (const bool reversed : {false, true}) {
          const Tensor all = poisoned(a.shape(), compares(op) ? boolean : dtype, generator);
          table().binary_scalar(op, a, number, reversed, all);
          std::vector<double> values = to_vector(a);
          for (double& v : values) {
            v = reversed ? reference(number, v) : reference(v, number);
            if (v < 0 && !compares(op)) v += wrap;
          }
          EXPECT_LE(finite_relative_error(to_vector(all), values), tolerance(dtype))
              << static_cast<int>(op) << " " << to_string(dtype) << " number, reversed "
              << reversed;
        }
      }
}

TEST(ElementwiseKernels, InPlaceIsTheSame) {
  Generator generator(103);
  const Tensor x = randn({3, 5, 700}, {}, generator), y = randn({3, 5, 700}, {}, generator);
  const Tensor expected = empty({3, 5, 700});
  table().binary(Binary::multiply, x, y, expected);
  const Tensor strided = random_layout(x, generator);
  table().binary(Binary::multiply, strided, y, strided);
  EXPECT_EQ(to_vector(strided), to_vector(expected));
  table().binary(Binary::multiply, x, y, x);
  EXPECT_EQ(to_vector(x), to_vector(expected));
}

TEST(ElementwiseKernels, CopyConvertsBetweenAllDtypes) {
  Generator generator(104);
  const std::vector<DType> dtypes{float32, float64, bfloat16, float16, int64, uint8, boolean};
  for (const DType from : dtypes)
    for (const DType to : dtypes)
      for (int round = 0; round < 3; ++round) {
        const Shape shape = random_shape(generator);
        const Tensor in =
            random_layout(randint(from == boolean ? 2 : 200, shape, {from}, generator), generator);
        const Tensor out = poisoned(shape, to, generator);
        table().copy(in, out);
        std::vector<double> expected = to_vector(in);
        if (to == boolean)
          for (double& v : expected) v = v != 0;
        EXPECT_EQ(to_vector(out), expected)
            << to_string(from) << " to " << to_string(to) << " " << to_string(shape);
      }
  // Values that a detour through float would change.
  const Tensor big = tensor({1}, {int64});
  big.data<std::int64_t>()[0] = (std::int64_t{1} << 53) + 1;
  const Tensor same = empty({1}, {int64});
  table().copy(big, same);
  EXPECT_EQ(same.data<std::int64_t>()[0], (1LL << 53) + 1);
}

// The rule of Tensor::to for one number: cut off the fraction, stay in range, NaN is 0.
std::int64_t as_integer(double value, DType to) {
  const std::int64_t least = to == uint8 ? 0 : std::numeric_limits<std::int64_t>::min(),
                     most = to == uint8 ? 255 : std::numeric_limits<std::int64_t>::max();
  if (std::isnan(value)) return 0;
  if (value >= (to == uint8 ? 255.0 : 0x1p63)) return most;
  if (value <= (to == uint8 ? 0.0 : -0x1p63)) return least;
  return static_cast<std::int64_t>(value);
}

TEST(ElementwiseKernels, CopyToIntegersIsDefinedForEveryNumber) {
  std::vector<double> numbers{NAN,    -NAN,    INFINITY, -INFINITY, 1e300, -1e300, 0x1p63, -0x1p63,
                              0x1p62, -0x1p62, 1e10,     -1e10,     255,   255.9,  256,    254.5,
                              0.99,   -0.99,   -1,       -300,      0,     -0.0,   1,      65504};
  numbers.insert(numbers.end(), numbers.begin(), numbers.end());  // a vector and a rest
  numbers.push_back(NAN);
  const auto count = static_cast<std::int64_t>(numbers.size());
  for (const DType from : {float32, float64, bfloat16, float16}) {
    // The rows are dense, every second element, and a single element that is repeated.
    const Tensor in = tensor(numbers, {from}), sparse = zeros({count, 2}, {from}).select(1, 0);
    sparse.copy_(in);
    const std::vector<double> values = to_vector(in);
    for (const DType to : {int64, uint8, boolean})
      for (const Tensor& x : {in, sparse}) {
        const Tensor out = empty({count}, {to}), first = empty({3}, {to});
        table().copy(x, out);
        table().copy(x.slice(0, 0, 1).expand({3}), first);
        for (std::int64_t i = 0; i < count; ++i) {
          const double value = values[static_cast<std::size_t>(i)];
          SCOPED_TRACE(fmt::format("{} from {} to {}", value, to_string(from), to_string(to)));
          if (to == int64) EXPECT_EQ(out.data<std::int64_t>()[i], as_integer(value, to));
          else if (to == uint8) EXPECT_EQ(out.data<std::uint8_t>()[i], as_integer(value, to));
          else EXPECT_EQ(out.data<bool>()[i], value != 0);
        }
        EXPECT_EQ(to_vector(first), std::vector<double>(3, to == boolean ? 1 : 0));
      }
  }
  for (const double value : numbers)
    for (const DType to : {int64, uint8}) {
      const Tensor out = empty({3}, {to});
      table().fill(out, value);
      EXPECT_EQ(full({1}, value, {to}).item<std::int64_t>(), as_integer(value, to)) << value;
      EXPECT_EQ(out.slice(0, 2, 3).item<std::int64_t>(), as_integer(value, to)) << value;
    }
}

TEST(ElementwiseKernels, TransposedCopies) {
  Generator generator(105);
  for (const Shape& shape :
       {Shape{2, 64, 16, 16}, Shape{2, 3, 20, 20}, Shape{1, 70, 7, 7}, Shape{2, 33, 13, 11}}) {
    const Tensor x = randn(shape, {}, generator);
    const Tensor last = empty(shape, {}, MemoryFormat::channels_last).fill_(NAN);
    table().copy(x, last);
    EXPECT_EQ(to_vector(last), to_vector(x)) << to_string(shape);
    const Tensor back = empty(shape).fill_(NAN);
    table().copy(last, back);
    EXPECT_EQ(to_vector(back), to_vector(x)) << to_string(shape);
  }
}

TEST(ElementwiseKernels, AxpyAndWhere) {
  Generator generator(106);
  for (int round = 0; round < 8; ++round)
    for (const DType x_type : test::trained_dtypes())
      for (const DType y_type : test::trained_dtypes()) {
        const Shape shape = random_shape(generator);
        const Tensor x = random_layout(
            randn(broadcastable(shape, generator), {float64}, generator).to(x_type), generator);
        const Tensor y = random_layout(randn(shape, {float64}, generator).to(y_type), generator);
        const auto a = to_vector(x.expand(shape));
        std::vector<double> expected = to_vector(y);
        for (std::size_t i = 0; i < a.size(); ++i) expected[i] += 0.5 * a[i];
        table().axpy(0.5, x, y);
        EXPECT_LE(finite_relative_error(to_vector(y), expected), tolerance(y_type));
      }
  for (const DType dtype : {float32, float64, bfloat16, float16, int64, uint8, boolean}) {
    const Shape shape = random_shape(generator);
    const auto operand = [&](DType d) {
      return random_layout(randint(2, broadcastable(shape, generator), {d}, generator), generator);
    };
    const Tensor c = operand(boolean), a = operand(dtype), b = operand(dtype),
                 out = poisoned(shape, dtype, generator);
    table().where(c, a, b, out);
    const auto choose = to_vector(c.expand(shape)), x = to_vector(a.expand(shape)),
               y = to_vector(b.expand(shape));
    const auto result = to_vector(out);
    for (std::size_t i = 0; i < result.size(); ++i)
      EXPECT_EQ(result[i], choose[i] != 0 ? x[i] : y[i]);
  }
}

// Relative error in units of the last place of a float32.
double ulps(float value, double exact) {
  if (std::isinf(exact) || std::isinf(value))
    return value == static_cast<float>(exact) ? 0 : INFINITY;
  const double unit =
      std::max(std::ldexp(1.0, std::ilogb(std::max(std::abs(exact), 0x1p-126)) - 23), 0x1p-149);
  return std::abs(static_cast<double>(value) - exact) / unit;
}

TEST(ElementwiseKernels, FloatFunctionsAreAccurateOverTheirWholeRange) {
  std::vector<double> inputs;
  for (double x = -110; x < 100; x += 0.00737) inputs.push_back(x);
  for (double x = 1e-30; x < 1; x *= 1.7) inputs.insert(inputs.end(), {x, -x});
  const Tensor x = tensor(inputs), out = empty({x.numel()});
  const ScopedValue keeps(detail::keeps_denormals, true);
  const auto worst = [&](Unary op, double (*reference)(double), double low = -INFINITY) {
    table().unary(op, x, out.fill_(NAN));
    double result = 0;
    for (std::int64_t i = 0; i < x.numel(); ++i)
      if (inputs[static_cast<std::size_t>(i)] > low)
        result = std::max(
            result, ulps(out.data<float>()[i], reference(static_cast<double>(x.data<float>()[i]))));
    return result;
  };
  EXPECT_LE(worst(Unary::exp, [](double v) { return std::exp(v); }), 2);
  EXPECT_LE(worst(Unary::tanh, [](double v) { return std::tanh(v); }), 3);
  // Below -88 exp(-x) overflows and the result is 0 instead of less than 1e-38.
  EXPECT_LE(worst(
                Unary::sigmoid, [](double v) { return 1 / (1 + std::exp(-v)); }, -88),
            4);
}

TEST(ElementwiseKernels, SpecialValues) {
  const double inf = INFINITY;
  const Tensor x = tensor({NAN, inf, -inf, 0, -0.0}), out = empty({5});
  table().unary(Unary::exp, x, out);
  EXPECT_EQ(finite_relative_error(to_vector(out), {NAN, inf, 0, 1, 1}), 0);
  table().unary(Unary::tanh, x, out);
  EXPECT_EQ(finite_relative_error(to_vector(out), {NAN, 1, -1, 0, 0}), 0);
  table().unary(Unary::sigmoid, x, out);
  EXPECT_EQ(finite_relative_error(to_vector(out), {NAN, 1, 0, 0.5, 0.5}), 0);
  table().unary(Unary::relu, x, out);
  EXPECT_EQ(finite_relative_error(to_vector(out), {NAN, inf, 0, 0, 0}), 0);
  table().binary_scalar(Binary::maximum, x, 1, true, out);
  EXPECT_EQ(finite_relative_error(to_vector(out), {NAN, inf, 1, 1, 1}), 0);
}

TEST(ElementwiseKernels, TheGradientOfReluPassesWhereTheOutputIsNaN) {
  for (const DType dtype : test::trained_dtypes()) {
    std::vector<double> outputs, gradients, expected;
    for (int i = 0; i < 67; ++i) {  // several vectors and a rest
      outputs.push_back(std::vector{0.0, 2.0, double{NAN}, double{INFINITY}, -1.0}[i % 5u]);
      gradients.push_back(i + 1);
      expected.push_back(i % 5 == 0 || i % 5 == 4 ? 0 : i + 1);
    }
    const Tensor g = tensor(gradients, {dtype}), y = tensor(outputs, {dtype}),
                 out = empty({67}, {dtype});
    table().binary(Binary::relu_grad, g, y, out);
    EXPECT_EQ(to_vector(out), expected) << to_string(dtype);
  }
}

TEST(ElementwiseKernels, SaysWhatItCannotCompute) {
  const Tensor half = zeros({2}, {float16}), whole = zeros({2}, {int64});
  if (test::test_device().is_cpu()) {
    EXPECT_THROW(table().unary(Unary::exp, half, half), DTypeError);
    EXPECT_THROW(table().binary(Binary::add, half, half, half), DTypeError);
  }
  EXPECT_THROW(table().binary(Binary::divide, whole, whole, whole), DTypeError);
}

TEST(ElementwiseKernels, ResultsDoNotDependOnTheThreadCount) {
  Generator generator(107);
  const Tensor x = randn({64, 37, 41}, {}, generator), y = randn({37, 1}, {}, generator);
  const auto compute = [&](int threads) {
    set_num_threads(threads);
    const Tensor out = empty(x.shape()).fill_(NAN);
    table().binary(Binary::divide, x, y, out);
    return to_vector(out);
  };
  const int before = num_threads();
  const auto one = compute(1), three = compute(3);
  set_num_threads(before);
  EXPECT_EQ(one, three);
}

}  // namespace
}  // namespace tutti::elementwise_test
