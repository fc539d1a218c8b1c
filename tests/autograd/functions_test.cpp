// Tests of every differentiable free function: its values against plain C++, its gradient against
// central differences, and its errors for tensors that do not fit together.
#include "dtype_options.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/gradcheck.h>
#include <tutti/autograd/indexing.h>
#include <tutti/core/create.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tutti {
namespace {

using autograd::gradcheck;
using Inputs = std::vector<Tensor>;

Tensor random(const Shape& shape, double low = -2, double high = 2) {
  static Generator generator(17);  // shared, so that every call draws other numbers
  return rand(shape, f64, generator) * (high - low) + low;
}

// Draws numbers at least 0.05 away from `points`, where a kink would spoil the difference.
Tensor away_from_zero(const Shape& shape) {
  const Tensor x = random(shape);
  return where(lt(x, 0), x - 0.05, x + 0.05);
}

struct UnaryCase {
  const char* name;
  Tensor (*function)(const Tensor&);
  double (*expected)(double);
  double low, high;
};

void PrintTo(const UnaryCase& c, std::ostream* out) { *out << c.name; }

class Functions : public ::testing::TestWithParam<UnaryCase> {};

TEST_P(Functions, ValueAndGradient) {
  const auto& c = GetParam();
  const Tensor x = random({3, 4, 5}, c.low, c.high);
  const std::vector<double> in = to_vector(x), out = to_vector(c.function(x));
  for (std::size_t i = 0; i < in.size(); ++i)
    EXPECT_NEAR(out[i], c.expected(in[i]), 1e-13 * (1 + std::abs(out[i])));
  const auto f = [&](const Inputs& v) { return c.function(v[0]); };
  const Tensor safe = c.low < 0 ? away_from_zero({3, 4, 5}) : x;
  for (const Tensor& input : {safe, safe.permute({2, 0, 1}), safe.slice(1, 0, 4, 2),
                              safe.contiguous(MemoryFormat::channels_last)}) {
    const auto result = gradcheck(f, {input});
    EXPECT_TRUE(result) << result.message;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Unary, Functions,
    ::testing::Values(
        UnaryCase{"negate", [](const Tensor& x) { return -x; }, [](double v) { return -v; }, -2, 2},
        UnaryCase{"abs", abs, [](double v) { return std::abs(v); }, -2, 2},
        UnaryCase{"exp", exp, [](double v) { return std::exp(v); }, -2, 2},
        UnaryCase{"log", log, [](double v) { return std::log(v); }, 0.5, 3},
        UnaryCase{"sqrt", sqrt, [](double v) { return std::sqrt(v); }, 0.5, 3},
        UnaryCase{"rsqrt", rsqrt, [](double v) { return 1 / std::sqrt(v); }, 0.5, 3},
        UnaryCase{"square", square, [](double v) { return v * v; }, -2, 2},
        UnaryCase{"cube", [](const Tensor& x) { return pow(x, 3); },
                  [](double v) { return v * v * v; }, -2, 2},
        UnaryCase{"power", [](const Tensor& x) { return pow(x, -1.5); },
                  [](double v) { return std::pow(v, -1.5); }, 0.5, 3},
        UnaryCase{"power_zero", [](const Tensor& x) { return pow(x, 0); },
                  [](double) { return 1.0; }, -2, 2},
        UnaryCase{"sin", sin, [](double v) { return std::sin(v); }, -2, 2},
        UnaryCase{"cos", cos, [](double v) { return std::cos(v); }, -2, 2},
        UnaryCase{"tanh", tanh, [](double v) { return std::tanh(v); }, -2, 2},
        UnaryCase{"sigmoid", sigmoid, [](double v) { return 1 / (1 + std::exp(-v)); }, -2, 2},
        UnaryCase{"silu", silu, [](double v) { return v / (1 + std::exp(-v)); }, -2, 2},
        UnaryCase{"hardswish", hardswish,
                  [](double v) { return v * std::clamp(v + 3, 0.0, 6.0) / 6; }, -6, 6},
        UnaryCase{"leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.3); },
                  [](double v) { return v > 0 ? v : 0.3 * v; }, -2, 2},
        UnaryCase{"relu", relu, [](double v) { return v > 0 ? v : 0; }, -2, 2},
        UnaryCase{"gelu", gelu,
                  [](double v) { return v * 0.5 * (1 + std::erf(v * std::sqrt(0.5))); }, -2, 2},
        UnaryCase{"add_number", [](const Tensor& x) { return 2 + (x + 3); },
                  [](double v) { return v + 5; }, -2, 2},
        UnaryCase{"subtract_number", [](const Tensor& x) { return 2 - (x - 3); },
                  [](double v) { return 5 - v; }, -2, 2},
        UnaryCase{"multiply_number", [](const Tensor& x) { return 2 * (x * 3); },
                  [](double v) { return 6 * v; }, -2, 2},
        UnaryCase{"divide_number", [](const Tensor& x) { return x / 4; },
                  [](double v) { return v / 4; }, -2, 2},
        UnaryCase{"divide_by", [](const Tensor& x) { return 4 / x; },
                  [](double v) { return 4 / v; }, 0.5, 3}),
    [](const auto& test) { return test.param.name; });

struct BinaryCase {
  const char* name;
  Tensor (*function)(const Tensor&, const Tensor&);
  double (*expected)(double, double);
};

void PrintTo(const BinaryCase& c, std::ostream* out) { *out << c.name; }

class BinaryFunctions : public ::testing::TestWithParam<BinaryCase> {};

TEST_P(BinaryFunctions, ValueAndGradientWithBroadcasting) {
  const auto& c = GetParam();
  const auto f = [&](const Inputs& v) { return c.function(v[0], v[1]); };
  const std::vector<std::pair<Shape, Shape>> shapes{{{3, 4}, {3, 4}},    {{3, 4}, {4}},
                                                    {{3, 1}, {1, 4}},    {{}, {2, 3}},
                                                    {{2, 3, 2}, {3, 1}}, {{0, 3}, {3}}};
  for (const auto& [p, q] : shapes) {
    const Tensor a = random(p, 0.5, 2), b = random(q, 0.5, 2);
    const Tensor out = c.function(a, b);
    const Tensor x = a.expand(out.shape()), y = b.expand(out.shape());
    const auto u = to_vector(x), v = to_vector(y), w = to_vector(out);
    for (std::size_t i = 0; i < w.size(); ++i) EXPECT_NEAR(w[i], c.expected(u[i], v[i]), 1e-14);
    const auto result = gradcheck(f, {a, b});
    EXPECT_TRUE(result) << to_string(p) << " " << to_string(q) << ": " << result.message;
  }
  const auto mixed =
      gradcheck(f, {random({2, 3, 4}, 0.5, 2).permute({2, 0, 1}),
                    random({4, 2, 3}, 0.5, 2).contiguous(MemoryFormat::channels_last)});
  EXPECT_TRUE(mixed) << mixed.message;
}

INSTANTIATE_TEST_SUITE_P(
    Binary, BinaryFunctions,
    ::testing::Values(
        BinaryCase{"add", operator+, [](double a, double b) { return a + b; }},
        BinaryCase{"subtract", operator-, [](double a, double b) { return a - b; }},
        BinaryCase{"multiply", operator*, [](double a, double b) { return a * b; }},
        BinaryCase{"divide", operator/, [](double a, double b) { return a / b; }},
        BinaryCase{"maximum", maximum, [](double a, double b) { return std::max(a, b); }},
        BinaryCase{"minimum", minimum, [](double a, double b) { return std::min(a, b); }},
        BinaryCase{"where",
                   [](const Tensor& a, const Tensor& b) { return where(gt(a, b * b), a, b); },
                   [](double a, double b) { return a > b * b ? a : b; }}),
    [](const auto& test) { return test.param.name; });

TEST(FunctionsGradient, OneTensorInBothPlaces) {
  const auto result =
      gradcheck([](const Inputs& v) { return v[0] * v[0] / (v[0] + v[0].transpose(0, 1)); },
                {random({3, 3}, 1, 2)});
  EXPECT_TRUE(result) << result.message;
}

TEST(FunctionsGradient, ReluMayOverwriteOnlyWhatNobodySees) {
  // Both uses of x + 1 receive the gradient that relu would like to overwrite.
  const Tensor x = tensor({-3, 1, 2}, f64).requires_grad_();
  const Tensor y = x + 1, g = ones({3}, f64);
  (relu(y) + y).backward(g);
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{1, 2, 2}));
  EXPECT_EQ(to_vector(g), (std::vector<double>{1, 1, 1}));
  const Tensor z = tensor({-3, 1, 2}, f64).requires_grad_();
  sum(relu(relu(z))).backward();  // an expanded gradient reaches relu
  EXPECT_EQ(to_vector(z.grad()), (std::vector<double>{0, 1, 1}));
}

TEST(FunctionsGradient, TiesShareTheGradient) {
  const Tensor a = tensor({1, 2}, f64).requires_grad_(), b = tensor({1, 3}, f64).requires_grad_();
  sum(maximum(a, b)).backward();
  EXPECT_EQ(to_vector(a.grad()), (std::vector<double>{0.5, 0}));
  EXPECT_EQ(to_vector(b.grad()), (std::vector<double>{0.5, 1}));
  const Tensor c = tensor({4, 1, 4, 4}, f64).requires_grad_();
  max(c).backward(full({}, 3, f64));
  EXPECT_EQ(to_vector(c.grad()), (std::vector<double>{1, 0, 1, 1}));
}

TEST(FunctionsGradient, DoesNotVanishAtNaN) {
  const double inf = INFINITY;
  for (const DType dtype : {float32, float64, bfloat16}) {
    const Tensor x = tensor({NAN, 1, -1, 0, NAN}, {dtype}).requires_grad_();
    relu(x).backward(tensor({2, 3, inf, NAN, 5}, {dtype}));
    EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{2, 3, 0, 0, 5}));
    for (auto* f : {maximum, minimum}) {
      const double sign = f == maximum ? 1 : -1;
      const Tensor a = (tensor({NAN, 1, NAN, 2, 4, 1}, {dtype}) * sign).requires_grad_(),
                   b = (tensor({1, NAN, NAN, 2, 1, 4}, {dtype}) * sign).requires_grad_();
      f(a, b).backward(tensor({3, 5, 7, 8, inf, 6}, {dtype}));
      EXPECT_EQ(to_vector(a.grad()), (std::vector<double>{3, 5, 7, 4, inf, 0}));
      EXPECT_EQ(to_vector(b.grad()), (std::vector<double>{3, 5, 7, 4, 0, 6}));
    }
  }
}

TEST(FunctionsGradient, OfAnExtremumThatIsNanGoesToTheNanElements) {
  for (const DType dtype : {float32, float64, bfloat16})
    for (const bool is_max : {true, false}) {
      const Tensor x = tensor({NAN, 1, NAN, 2, 2, 1}, {2, 3}, {dtype}).requires_grad_();
      const Tensor y = is_max ? max(x, {1}) : min(x, {1});
      y.backward(tensor({6, 8}, {dtype}));
      EXPECT_TRUE(std::isnan(to_vector(y)[0]));
      EXPECT_EQ(to_vector(x.grad()), is_max ? (std::vector<double>{3, 0, 3, 4, 4, 0})
                                            : (std::vector<double>{3, 0, 3, 0, 0, 8}));
    }
}

TEST(FunctionsReduce, AnyCorrectionOfAVarianceIsTaken) {
  const Tensor x = tensor({1, 2, 3, 6}, f64);
  constexpr auto least = std::numeric_limits<std::int64_t>::min();
  EXPECT_DOUBLE_EQ(var(x, {0}, {.correction = least}).item<double>(), 14 / 0x1p63);
  EXPECT_EQ(var(x, {0}, {.correction = 5}).item<double>(), INFINITY);
}

TEST(FunctionsReduce, ValuesAndShapes) {
  const Tensor x = tensor({1, 2, 3, 4, 5, 6}, {2, 3}, f64);
  EXPECT_EQ(sum(x).item<double>(), 21);
  EXPECT_EQ(sum(x).rank(), 0);
  EXPECT_EQ(to_vector(sum(x, {0})), (std::vector<double>{5, 7, 9}));
  EXPECT_EQ(to_string(sum(x, {-1}, true).shape()), "(2, 1)");
  EXPECT_EQ(to_vector(mean(x, {1})), (std::vector<double>{2, 5}));
  EXPECT_EQ(to_vector(max(x, {1})), (std::vector<double>{3, 6}));
  EXPECT_EQ(min(x).item<double>(), 1);
  EXPECT_EQ(to_vector(argmax(-x, 1)), (std::vector<double>{0, 0}));
  EXPECT_EQ(to_string(argmax(x, 0, true).shape()), "(1, 3)");
  EXPECT_EQ(sum(eq(x, 3)).item<std::int64_t>(), 1);
  EXPECT_EQ(sum(eq(x, 3)).dtype(), int64);
  EXPECT_EQ(to_vector(sum(zeros({0, 2}), {0})), (std::vector<double>{0, 0}));
  EXPECT_TRUE(std::isnan(mean(zeros({0})).item<float>()));
}

TEST(FunctionsReduce, AMeanOf16BitNumbersIsRoundedOnce) {
  // bfloat16 has 256 and 258 but not 257, so a sum in bfloat16 would be rounded.
  const Tensor x = ones({257}, {bfloat16}).requires_grad_();
  const Tensor y = mean(x);
  EXPECT_EQ(y.dtype(), bfloat16);
  EXPECT_EQ(y.item<double>(), 1);
  y.backward();
  EXPECT_EQ(to_vector(x.grad()), std::vector<double>(257, BFloat16(1.0f / 257)));
}

TEST(FunctionsReduce, OfEqualLargestElementsTheFirstIsNamed) {
  const double nan = std::nan("");
  EXPECT_EQ(argmax(tensor({1, 3, 2, 3})).item<int>(), 1);
  EXPECT_EQ(argmax(tensor({1, nan, 5, nan})).item<int>(), 1);
  EXPECT_EQ(to_vector(topk(tensor({1, 3, 2, 3, 3}), 3, 0).second), (std::vector<double>{1, 3, 4}));
}

TEST(FunctionsReduce, Gradients) {
  const Tensor x = random({2, 3, 4});
  for (const bool keep : {false, true})
    for (const Dims& dims : {Dims{0}, Dims{1}, Dims{2}, Dims{0, 2}, Dims{-1, 0, 1}, Dims{}})
      for (const Tensor& in : {x, x.transpose(0, 2), x.slice(1, 1, 3)}) {
        for (auto* f : {static_cast<Tensor (*)(const Tensor&, const Dims&, bool)>(sum),
                        static_cast<Tensor (*)(const Tensor&, const Dims&, bool)>(mean),
                        static_cast<Tensor (*)(const Tensor&, const Dims&, bool)>(max),
                        static_cast<Tensor (*)(const Tensor&, const Dims&, bool)>(min)}) {
          const auto result =
              gradcheck([&](const Inputs& v) { return square(f(v[0], dims, keep)); }, {in});
          EXPECT_TRUE(result) << to_string(dims) << ": " << result.message;
        }
      }
}

TEST(FunctionsSoftmax, SumsToOneAndSurvivesLargeNumbers) {
  const Tensor x = tensor({1000, 1001, 999, -1000, 0, 1000}, {2, 3}, f64);
  const auto y = to_vector(softmax(x, 1)), log = to_vector(log_softmax(x, 1));
  EXPECT_NEAR(y[0] + y[1] + y[2], 1, 1e-15);
  EXPECT_NEAR(y[1] / y[0], std::exp(1.0), 1e-12);
  EXPECT_EQ(log[3], -2000);
  EXPECT_NEAR(std::exp(log[0]), y[0], 1e-15);
}

TEST(FunctionsSoftmax, ATensorWithoutDimensionsIsASliceOfOne) {
  for (const int dim : {0, -1}) {
    for (const DType dtype : {float32, float64, bfloat16}) {
      const Tensor x = scalar(3, {dtype}).requires_grad_();
      for (auto* f : {softmax, log_softmax}) {
        const Tensor y = f(x, dim);
        EXPECT_EQ(y.shape(), Shape{});
        EXPECT_EQ(y.item<double>(), f == softmax ? 1 : 0);
        y.backward();
        EXPECT_EQ(x.grad().shape(), Shape{});
        EXPECT_EQ(x.grad().item<double>(), 0);
      }
    }
    for (const bool keepdim : {false, true}) {
      const Tensor at = argmax(scalar(3), dim, keepdim);
      EXPECT_EQ(at.shape(), Shape{});
      EXPECT_EQ(at.dtype(), int64);
      EXPECT_EQ(at.item<std::int64_t>(), 0);
    }
  }
  EXPECT_THROW(softmax(scalar(3), 1), ShapeError);
  EXPECT_THROW(argmax(scalar(3), -2), ShapeError);
}

TEST(FunctionsSoftmax, Gradients) {
  for (int dim = 0; dim < 3; ++dim)
    for (const Tensor& in : {random({2, 3, 4}), random({4, 2, 3}).permute({1, 2, 0}),
                             random({2, 6, 4}).slice(1, 0, 6, 2)})
      for (auto* f : {softmax, log_softmax}) {
        const auto result = gradcheck([&](const Inputs& v) { return f(v[0], dim); }, {in});
        EXPECT_TRUE(result) << result.message;
      }
}

TEST(FunctionsJoin, CatAndStack) {
  const Tensor a = tensor({1, 2}, {1, 2}), b = tensor({3, 4, 5, 6}, {2, 2});
  EXPECT_EQ(to_vector(cat({a, b})), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(to_vector(stack({a, a + 2}, -1)), (std::vector<double>{1, 3, 2, 4}));
  for (const int dim : {0, 1, -1}) {
    const auto joined = gradcheck(
        [&](const Inputs& v) {
          return cat({v[0], v[1] * 2, v[0]}, dim);
        },
        {random({2, 3}), random({3, 2}).transpose(0, 1)});
    EXPECT_TRUE(joined) << joined.message;
    const auto stacked = gradcheck(
        [&](const Inputs& v) {
          return stack({v[0], v[1]}, dim);
        },
        {random({2, 3}), random({2, 3})});
    EXPECT_TRUE(stacked) << stacked.message;
  }
  const Tensor image = zeros({2, 3, 4, 4}).contiguous(MemoryFormat::channels_last);
  EXPECT_EQ(cat({image, image}, 1).memory_format(), MemoryFormat::channels_last);
  EXPECT_THROW(cat({a, zeros({2, 3})}), ShapeError);
  EXPECT_THROW(cat({}), ShapeError);
}

TEST(FunctionsJoin, SizesThatAddUpToTooMuch) {
  const Tensor huge = zeros({1}).expand({std::int64_t{1} << 62});
  try {
    cat({huge, huge});
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_NE(std::string(error.what()).find("cat: the sizes in dimension 0"), std::string::npos)
        << error.what();
  }
}

TEST(FunctionsLayout, OutputsKeepTheLayoutOfTheirInputs) {
  const Tensor x = empty({2, 3, 4, 5}, {}, MemoryFormat::channels_last).fill_(1);
  const Tensor scale = ones({1, 3, 1, 1});
  EXPECT_EQ(relu(x).memory_format(), MemoryFormat::channels_last);
  EXPECT_EQ((x * scale).memory_format(), MemoryFormat::channels_last);
  EXPECT_EQ((scale * x).memory_format(), MemoryFormat::channels_last);
  EXPECT_EQ((x + x * 2).memory_format(), MemoryFormat::channels_last);
}

TEST(FunctionsErrors, TensorsThatDoNotFit) {
  const Tensor a = ones({2, 3}), b = ones({2, 3}, f64);
  EXPECT_THROW(a + b, DTypeError);
  EXPECT_THROW(a + ones({2, 2}), ShapeError);
  EXPECT_THROW(arange(3) / arange(3), DTypeError);
  EXPECT_THROW(arange(3) * 0.5, DTypeError);
  EXPECT_EQ(to_vector(arange(3) * 2), (std::vector<double>{0, 2, 4}));
  EXPECT_THROW(sqrt(arange(3)), DTypeError);
  EXPECT_THROW(where(a, a, a), DTypeError);
  EXPECT_THROW(sum(a, {2}), ShapeError);
  EXPECT_THROW(sum(a, {0, -2}), ShapeError);
  EXPECT_THROW(max(ones({2, 0}), {1}), ShapeError);
  try {
    a + b;
    FAIL();
  } catch (const DTypeError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("add: expected tensors of one dtype, got float32 and float64"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tutti
