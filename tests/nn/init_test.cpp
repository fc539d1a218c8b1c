// Tests of initial values: moments and bounds of each scheme, for all layouts and thread counts.
#include <tutti/core/parallel.h>
#include <tutti/nn/init.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace tutti {
namespace {

using namespace nn;

struct Moments {
  double mean = 0, std = 0, low = 0, high = 0, kurtosis = 0;
};

Moments moments_of(const Tensor& tensor) {
  const std::vector<double> values = to_vector(tensor);
  const auto n = static_cast<double>(values.size());
  Moments m;
  for (const double v : values) m.mean += v / n;
  for (const double v : values)
    m.std += (v - m.mean) * (v - m.mean) / n, m.kurtosis += std::pow(v - m.mean, 4) / n;
  m.kurtosis /= m.std * m.std;
  m.std = std::sqrt(m.std);
  m.low = *std::min_element(values.begin(), values.end());
  m.high = *std::max_element(values.begin(), values.end());
  return m;
}

// The weight has 55296 values, fan_in 48 * 9 = 432 and fan_out 128 * 9 = 1152.
Tensor weight() { return full({128, 48, 3, 3}, std::nan("")); }
constexpr double relative = 0.02;  // more than four standard errors of std over that many values

void expect_std(const Tensor& tensor, double std, double kurtosis) {
  const Moments m = moments_of(tensor);
  EXPECT_NEAR(m.std, std, relative * std);
  EXPECT_NEAR(m.mean, 0, relative * std);
  EXPECT_NEAR(m.kurtosis, kurtosis, 0.15);  // 3 for a normal, 1.8 for a uniform distribution
}

TEST(Init, SchemesHaveTheirVarianceAndShape) {
  const double in = 48 * 9, out = 128 * 9;
  const Tensor w = weight();
  Generator generator(11);
  init::normal_(w, 0, 0.5, generator);
  expect_std(w, 0.5, 3);
  init::kaiming_normal_(w, {}, generator);
  expect_std(w, std::sqrt(2 / in), 3);
  init::kaiming_normal_(w, {.fan = init::Fan::out}, generator);
  expect_std(w, std::sqrt(2 / out), 3);
  init::uniform_(w, 2, 3, generator);
  const Moments m = moments_of(w);
  EXPECT_GE(m.low, 2);
  EXPECT_LE(m.high, 3);
  EXPECT_NEAR(m.mean, 2.5, 0.01);
}

TEST(Init, DefaultIsPyTorchs) {
  const Tensor w = weight(), bias = full({128}, std::nan(""));
  Generator generator(12);
  init::default_(w, bias, generator);
  const double bound = 1 / std::sqrt(48 * 9.0);
  expect_std(w, bound / std::sqrt(3.0), 1.8);
  EXPECT_LE(moments_of(w).high, bound);
  EXPECT_GT(moments_of(w).high, 0.999 * bound);
  EXPECT_LE(moments_of(bias).high, bound);
  EXPECT_GE(moments_of(bias).low, -bound);
  EXPECT_GT(moments_of(bias).high - moments_of(bias).low, 1.8 * bound);
  init::default_(w, Tensor(), generator);
}

TEST(Init, ValuesDependOnTheSeedAlone) {
  const auto draw = [](int threads, MemoryFormat format, DType dtype) {
    set_num_threads(threads);
    Generator generator(13);
    const Tensor a = empty({33, 21, 7, 5}, {.dtype = dtype}, format),
                 b = empty({3}, {.dtype = dtype});
    init::normal_(a, 0, 1, generator);
    init::uniform_(b, 0, 1, generator);
    auto values = to_vector(a);
    for (const double v : to_vector(b)) values.push_back(v);
    return values;
  };
  const int before = num_threads();
  const auto reference = draw(1, MemoryFormat::contiguous, float32);
  EXPECT_EQ(draw(3, MemoryFormat::contiguous, float32), reference);
  EXPECT_EQ(draw(2, MemoryFormat::channels_last, float32), reference);
  auto rounded = reference;
  for (double& v : rounded) v = BFloat16(static_cast<float>(v));
  EXPECT_EQ(draw(2, MemoryFormat::contiguous, bfloat16), rounded);
  set_num_threads(before);
}

TEST(Init, TheNextTensorGetsOtherValues) {
  Generator generator(3);
  const Tensor a = zeros({5}), b = zeros({5});
  for (Tensor const* tensor : {&a, &b}) init::normal_(*tensor, 0, 1, generator);
  EXPECT_NE(to_vector(a), to_vector(b));
  for (Tensor const* tensor : {&a, &b}) init::uniform_(*tensor, 0, 1, generator);
  EXPECT_NE(to_vector(a), to_vector(b));
}

TEST(Init, WorksOnParametersAndRefusesNonsense) {
  Tensor w = weight();
  w.requires_grad_();
  init::constant_(w, 3);
  EXPECT_EQ(moments_of(w).low, 3);
  EXPECT_EQ(moments_of(w).high, 3);
  EXPECT_THROW(init::normal_(w, 0, -1), ValueError);
  EXPECT_THROW(init::normal_(w, 0, std::nan("")), ValueError);
  EXPECT_THROW(init::uniform_(w, 1, 0), ValueError);
  EXPECT_THROW(init::kaiming_normal_(zeros({3})), ShapeError);
  EXPECT_THROW(init::normal_(zeros({3}, {.dtype = int64})), DTypeError);
  EXPECT_EQ(moments_of(w).low, 3);
}

}  // namespace
}  // namespace tutti
