// These tests compare every batch-norm kernel with plain float64 loops, for random shapes, layouts
// and dtypes. Outputs are filled with wrong values first, so that an element which a kernel does
// not write is noticed.
#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/kernels/batch_norm_math.h>

#include "compare.h"
#include "tables.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace tutti::batch_norm_test {
namespace {

using Values = std::vector<double>;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

struct Case {
  Shape shape;
  DType dtype;
  MemoryFormat format;
  std::int64_t channels() const { return shape[1]; }
  std::int64_t channel_of(std::size_t i) const {
    return static_cast<std::int64_t>(i) / product(shape, 2, shape.size()) % shape[1];
  }
  std::string text() const {
    return to_string(shape) + " " + to_string(dtype) + " " + to_string(format);
  }
};

std::vector<Case> cases() {
  Generator random(17);
  std::vector<Shape> shapes{{64, 16, 7, 7},  {5, 1, 9, 3},  {3, 130, 5},      {300, 7},
                            {2, 3, 4, 5, 6}, {9, 40, 1, 1}, {1, 300, 13, 11}, {2, 512, 40},
                            {1, 2, 70, 70},  {700, 24}};
  for (int i = 0; i < 8; ++i)
    shapes.push_back(
        {1 + random.below(6), 1 + random.below(90), 1 + random.below(12), 1 + random.below(12)});
  std::vector<Case> all;
  for (const Shape& shape : shapes)
    for (const DType dtype : {float32, float64, bfloat16, float16})
      for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        if (dtype == float16 && test::test_device().is_cpu()) continue;  // The CPU has none.
        if (test::emulated() && shape[1] > 100 && dtype != float32) continue;
        all.push_back({shape, dtype, format});
      }
  return all;
}

// Returns the largest error that the rounding of an output to `dtype` explains; sum_tolerance
// returns the one that sums in float32 (float64 for float64) explain.
double tolerance(DType dtype) { return dtype == float64 ? 1e-12 : dtype == float32 ? 2e-6 : 5e-3; }
double sum_tolerance(DType dtype) { return dtype == float64 ? 1e-12 : 3e-6; }

Tensor random_tensor(const Case& c, Generator& random, double scale = 1, double shift = 0) {
  const Tensor values = randn(c.shape, {float64}, random);
  values.mul_(scale);
  values.add_(full({}, shift, {float64}));
  const Tensor x = empty(c.shape, {c.dtype}, c.format);
  x.copy_(values);
  return x;
}

Tensor poisoned(const Case& c) {
  const Tensor x = empty(c.shape, {c.dtype}, c.format);
  x.fill_(nan);
  return x;
}

Tensor packet(std::int64_t channels) {
  return full({kernels::packet_size(channels)}, nan, {float64});
}

double error(const Values& got, const Values& expected) {
  return test::relative_error(got, expected);
}

Values slice(const Tensor& packet, int half) {
  const std::int64_t c = (packet.numel() - kernels::packet_header_size) / 2,
                     at = kernels::packet_header_size + half * c;
  return to_vector(packet.slice(0, at, at + c));
}

struct Moments {
  double count = 0;
  Values mean, m2;
};

Moments reference(const Case& c, const Values& x, const Values& position_weights = {}) {
  const auto C = static_cast<std::size_t>(c.channels());
  const std::size_t inner = static_cast<std::size_t>(product(c.shape, 2, c.shape.size()));
  const auto weight = [&](std::size_t i) {
    return position_weights.empty() ? 1.0 : position_weights[i / inner / C * inner + i % inner];
  };
  Moments m{0, Values(C), Values(C)};
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto ch = static_cast<std::size_t>(c.channel_of(i));
    if (ch == 0) m.count += weight(i);
    m.mean[ch] += weight(i) * x[i];
  }
  for (double& v : m.mean) v /= m.count > 0 ? m.count : 1;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto ch = static_cast<std::size_t>(c.channel_of(i));
    m.m2[ch] += weight(i) * (x[i] - m.mean[ch]) * (x[i] - m.mean[ch]);
  }
  return m;
}

const kernels::BatchNorm& table() { return test::batch_norm(); }

constexpr kernels::PacketHeader header{
    .input_grad = 1, .backward = 2, .fingerprint = 3, .fingerprint_squared = 9};

TEST(BatchNormKernels, Moments) {
  Generator random(1);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    const Tensor x = random_tensor(c, random, 2, -3), p = packet(c.channels());
    table().moments(x, {}, p);
    const Moments m = reference(c, to_vector(x));
    EXPECT_EQ(p.data<double>()[0], m.count);
    EXPECT_TRUE(std::isnan(p.data<double>()[1])) << "the rest of the header is not the kernel's";
    EXPECT_LT(error(slice(p, 0), m.mean), sum_tolerance(c.dtype));
    EXPECT_LT(error(slice(p, 1), m.m2), sum_tolerance(c.dtype));
  }
}

TEST(BatchNormKernels, WeightedMoments) {
  Generator random(2);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    Shape positions = c.shape;
    positions.erase(1);
    const Tensor w = rand(positions, {}, random);
    for (std::int64_t i = 0; i < w.numel(); i += 3) w.data<float>()[i] = 0;
    const Tensor x = random_tensor(c, random), p = packet(c.channels());
    table().moments(x, w, p);
    const Moments m = reference(c, to_vector(x), to_vector(w));
    EXPECT_NEAR(p.data<double>()[0], m.count, 1e-9 * m.count);
    const Values means = slice(p, 0);
    for (std::size_t i = 0; i < means.size(); ++i)
      EXPECT_LT(std::abs(means[i] - m.mean[i]),
                sum_tolerance(c.dtype) * std::sqrt(m.m2[i] / m.count) + 1e-14);
    EXPECT_LT(error(slice(p, 1), m.m2), sum_tolerance(c.dtype));
  }
}

// The error of mean and M2, measured against those of the rounded x, is at most 3e-6 for any mean,
// variance and count.
TEST(BatchNormKernels, MomentsSurviveLargeMeansSmallVariancesAndOutliers) {
  Generator random(3);
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    for (const Shape& shape : {Shape{16, 16, 20, 20}, Shape{4, 70, 9, 9}}) {
      const Case c{shape, float32, format};
      for (const auto& [scale, shift] :
           {std::pair{1.0, 1e4}, {1e-6, 0.0}, {1e-6, 1e-2}, {1e3, -1e7}}) {
        SCOPED_TRACE(c.text() + " std " + std::to_string(scale) + " mean " + std::to_string(shift));
        const Tensor x = random_tensor(c, random, scale, shift), p = packet(c.channels());
        // The kernels compute their first shift from the first value, which is an outlier here.
        x.data<float>()[0] += static_cast<float>(1000 * scale);
        table().moments(x, {}, p);
        const Moments m = reference(c, to_vector(x));
        const Values means = slice(p, 0);
        for (std::size_t i = 0; i < means.size(); ++i)
          EXPECT_LT(std::abs(means[i] - m.mean[i]), 1e-6 * std::sqrt(m.m2[i] / m.count));
        EXPECT_LT(error(slice(p, 1), m.m2), sum_tolerance(float32));
      }
    }
}

// Long runs of positions, whole samples and the first positions have weight 0, where x is NaN. The
// results are to the bit those of an x that is 0 there.
TEST(BatchNormKernels, PositionsOfWeightZeroAddNothingAndMayBeNaN) {
  const test::Threads one(1);
  Generator random(21);
  for (const DType dtype : {float32, float64, bfloat16})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const Case c{{3, 20, 30, 30}, dtype, format};
      SCOPED_TRACE(c.text());
      const Tensor w = rand({3, 30, 30}, {}, random), zero = random_tensor(c, random, 1, 3),
                   dy = random_tensor(c, random);
      for (std::int64_t i = 0; i < w.numel(); ++i)
        if (i < 1000 || (i < 1500 && i % 3 == 0) || (i > 1500 && i < 2400)) w.data<float>()[i] = 0;
      const Tensor masked = eq(w, 0).unsqueeze(1).expand(c.shape);
      zero.copy_(masked_fill(zero, masked, 0));
      dy.copy_(masked_fill(dy, masked, 0));
      const Tensor bad = zero.clone();
      bad.copy_(masked_fill(bad, masked, nan));

      const Moments m = reference(c, to_vector(zero), to_vector(w));
      const kernels::Normalization to{randn({20}, {float64}, random), rand({20}, {float64}, random),
                                      ones({20}), zeros({20})};
      std::vector<Values> results;
      for (const Tensor& x : {zero, bad}) {
        const Tensor moments = packet(20), sums = packet(20), dx = poisoned(c);
        table().moments(x, w, moments);
        EXPECT_NEAR(moments.data<double>()[0], m.count, 1e-9 * m.count);
        EXPECT_LT(error(slice(moments, 0), m.mean), sum_tolerance(dtype));
        EXPECT_LT(error(slice(moments, 1), m.m2), sum_tolerance(dtype));
        const kernels::SavedForward saved{.normalization = to, .x = x, .weighted = true};
        table().gradient_sums({.dy = dy, .saved = saved, .sums = sums});
        table().apply_grad({.dy = dy,
                            .saved = saved,
                            .sums = sums,
                            .moments = moments,
                            .position_weights = w,
                            .dx = dx});
        Values all = to_vector(dx);
        for (const Tensor& each : {moments, sums})
          for (const int half : {0, 1})
            for (const double value : slice(each, half)) all.push_back(value);
        results.push_back(all);
      }
      EXPECT_EQ(results[1], results[0]);
    }
}

TEST(BatchNormKernels, ConstantInputHasExactlyNoVariance) {
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = empty({8, 20, 11, 11}, {}, format), p = packet(20);
    x.fill_(0.1);
    table().moments(x, {}, p);
    EXPECT_EQ(slice(p, 1), Values(20, 0.0));
    EXPECT_EQ(slice(p, 0), Values(20, static_cast<double>(0.1f)));
  }
}

TEST(BatchNormKernels, SumsAddOverRanksToTheMomentsOfTheWhole) {
  Generator random(4);
  const Case whole{{12, 10, 5, 5}, float64, MemoryFormat::contiguous};
  const Tensor x = random_tensor(whole, random, 1, 1e4);
  const Moments m = reference(whole, to_vector(x));
  for (const bool exact : {false, true}) {
    const Shape size{exact ? kernels::exact_packet_size(10) : kernels::packet_size(10)};
    const Tensor total = zeros(size, {float64}), got = packet(10);
    // The second slice is empty.
    for (const auto& [from, to] : {std::pair{0, 1}, {1, 1}, {1, 9}, {9, 12}}) {
      const Tensor sums = full(size, nan, {float64});
      table().moment_sums(x.slice(0, from, to), {}, {}, sums);
      // If the number of ranks is not given, no kernel reads the rest of the header.
      for (int i = exact ? 2 : 1; i < 8; ++i) sums.data<double>()[i] = nan;
      total.add_(sums);
    }
    const Tensor mean = empty({10}, {float64}), rstd = empty({10}, {float64});
    table().finalize_statistics(total, got, {}, mean, rstd);
    EXPECT_EQ(got.data<double>()[0], m.count);
    EXPECT_LT(error(slice(got, 0), m.mean), exact ? 1e-15 : 1e-14);
    // 1e-11 is the error of the reference itself, whose mean is rounded.
    EXPECT_LT(error(slice(got, 1), m.m2), exact ? 1e-11 : 1e-6);

    const Tensor nothing = zeros(size, {float64});
    table().finalize_statistics(nothing, got, {}, mean, rstd);
    EXPECT_EQ(slice(got, 0), Values(10, 0.0));
    EXPECT_EQ(slice(got, 1), Values(10, 0.0));
  }
}

TEST(BatchNormKernels, SumsOfWhatIsNotFiniteAreNot) {
  for (const double bad : {nan, double{INFINITY}, -double{INFINITY}})
    for (const bool exact : {false, true}) {
      const Tensor x = full({3, 1}, bad, {float64}), p = packet(1);
      const Tensor mean = zeros({1}, {float64}), rstd = zeros({1}, {float64});
      const Tensor sums =
          zeros({exact ? kernels::exact_packet_size(1) : kernels::packet_size(1)}, {float64});
      table().moment_sums(x, {}, {}, sums);
      table().finalize_statistics(sums, p, {}, mean, rstd);
      EXPECT_EQ(p.data<double>()[0], 3);
      EXPECT_FALSE(std::isfinite(slice(p, 0)[0]));
      EXPECT_TRUE(std::isnan(slice(p, 1)[0]));
    }
}

TEST(BatchNormKernels, FinalStatisticsAddEpsOrTakeItAsFloor) {
  const Tensor p = zeros({kernels::packet_size(2)}, {float64});
  const Values values{4, 0, 0, 0, 0, 0, 0, 0, /*mean*/ 5, 6, /*M2*/ 16, 0.004};
  for (std::size_t i = 0; i < values.size(); ++i) p.data<double>()[i] = values[i];
  const Tensor mean = full({2}, nan, {float64}), rstd = full({2}, nan, {float64});
  table().finalize_statistics({}, p, {.eps = {0.5, false}}, mean, rstd);
  EXPECT_EQ(to_vector(mean), (Values{5, 6}));
  EXPECT_EQ(to_vector(rstd), (Values{1 / std::sqrt(4.5), 1 / std::sqrt(0.501)}));
  table().finalize_statistics({}, p, {.eps = {0.5, true}}, mean, rstd);
  EXPECT_EQ(to_vector(rstd), (Values{1 / std::sqrt(4.0), 1 / std::sqrt(0.5)}));
  p.data<double>()[10] = nan;
  for (const bool floor : {false, true}) {
    table().finalize_statistics({}, p, {.eps = {0.5, floor}}, mean, rstd);
    EXPECT_TRUE(std::isnan(to_vector(rstd)[0])) << "a variance that is NaN is not below the floor";
  }
}

TEST(BatchNormKernels, RunningStatistics) {
  using kernels::Tracking;
  Generator random(5);
  const Case c{{6, 3, 2}, float64, MemoryFormat::contiguous};
  for (const Tracking tracking : {Tracking::momentum, Tracking::cumulative, Tracking::pooled}) {
    kernels::RunningStatistics running{
        zeros({3}, {float64}), ones({3}, {float64}), zeros({}, {int64}), {}};
    if (tracking == Tracking::pooled) running.elements = zeros({}, {float64});
    const auto update = [&](const Tensor& moments) {
      const Tensor batch_mean = empty({3}, {float64}), rstd = empty({3}, {float64});
      table().finalize_statistics({}, moments,
                                  {.tracking = tracking, .momentum = 0.3, .running = running},
                                  batch_mean, rstd);
    };
    Values mean(3, 0), var(3, 1), all;
    std::int64_t samples = 0;
    for (int batch = 1; batch <= 4; ++batch) {
      Case part = c;
      part.shape[0] = batch + 1;
      const Tensor x = random_tensor(part, random, 2, batch), p = packet(3);
      table().moments(x, {}, p);
      update(p);
      const Values values = to_vector(x);
      all.insert(all.end(), values.begin(), values.end());
      samples += part.shape[0];
      const Moments m = reference(part, values);
      const double factor = tracking == Tracking::cumulative ? 1.0 / batch : 0.3;
      for (std::size_t i = 0; i < 3; ++i) {
        mean[i] = (1 - factor) * mean[i] + factor * m.mean[i];
        var[i] = (1 - factor) * var[i] + factor * m.m2[i] / (m.count - 1);
      }
    }
    if (tracking == Tracking::pooled) {
      const Moments m = reference({{samples, 3, 2}, float64, c.format}, all);
      mean = m.mean;
      for (std::size_t i = 0; i < 3; ++i) var[i] = m.m2[i] / (m.count - 1);
      EXPECT_EQ(running.elements.item<double>(), m.count);
    }
    EXPECT_LT(error(to_vector(running.mean), mean), 1e-13);
    EXPECT_LT(error(to_vector(running.var), var), 1e-13);
    EXPECT_EQ(running.batches.item<int>(), 4);
    update(zeros({kernels::packet_size(3)}, {float64}));
    EXPECT_EQ(running.batches.item<int>(), 4) << "an empty batch is none";
    for (const double count : {0.5, 1.0}) {  // of which there is no variance
      const Tensor few = zeros({kernels::packet_size(3)}, {float64});
      few.data<double>()[0] = count;
      update(few);
      EXPECT_EQ(running.batches.item<int>(), 4) << count;
    }
    EXPECT_LT(error(to_vector(running.mean), mean), 1e-13);
  }
}

// The per-channel numbers and the tensors of one forward and backward.
struct Step {
  Case c;
  Tensor x, residual, dy, mean, rstd, weight, bias;
  Values vx, vr, vdy, vmean, vrstd, vweight, vbias;

  Step(const Case& which, Generator& random) : c(which) {
    x = random_tensor(c, random, 1, 0.5);
    residual = random_tensor(c, random);
    dy = random_tensor(c, random);
    mean = randn({c.channels()}, {float64}, random);
    rstd = rand({c.channels()}, {float64}, random);
    weight = randn({c.channels()}, {}, random);
    bias = randn({c.channels()}, {}, random);
    vx = to_vector(x), vr = to_vector(residual), vdy = to_vector(dy), vmean = to_vector(mean),
    vrstd = to_vector(rstd);
    vweight = to_vector(weight), vbias = to_vector(bias);
  }
  kernels::Normalization to(bool add, bool relu, const Tensor& mask = {}) const {
    return {mean, rstd, weight, bias, add ? residual : Tensor(), relu, mask};
  }
  // Returns a mask whose bytes are all 0xa5; undefined if the device has no masks or none is
  // needed.
  Tensor poisoned_mask(bool add = true, bool relu = true) const {
    const std::int64_t bytes = add && relu ? table().mask_size(x) : 0;
    return bytes > 0 ? full({bytes}, 0xa5, {uint8}) : Tensor();
  }
  // Returns the inputs of one backward. It passes the output only if there is no mask.
  kernels::SavedForward grad(bool add, bool relu, const Tensor& mask, const Tensor& y) const {
    return {to(add, relu, mask), x, mask.defined() ? Tensor() : y};
  }
  double z(std::size_t i, bool add) const {
    const auto ch = static_cast<std::size_t>(c.channel_of(i));
    return (vx[i] - vmean[ch]) * vrstd[ch] * vweight[ch] + vbias[ch] + (add ? vr[i] : 0);
  }
};

// Limits kernels to one thread while it exists. Tests of many small calls use it, because with
// several threads their run time depends on the load of the machine.
struct OneThread {
  OneThread() { set_num_threads(1); }
  ~OneThread() { set_num_threads(before); }
  int before = num_threads();
};

TEST(BatchNormKernels, Apply) {
  const OneThread one;
  Generator random(6);
  for (const Case& c : cases()) {
    const Step s(c, random);
    for (const bool add : {false, true})
      for (const bool relu : {false, true}) {
        SCOPED_TRACE(c.text() + (add ? " add" : "") + (relu ? " relu" : ""));
        const Tensor y = poisoned(c);
        table().apply(s.x, s.to(add, relu), y);
        Values expected(s.vx.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
          expected[i] = s.z(i, add);
          if (relu) expected[i] = std::max(0.0, expected[i]);
        }
        EXPECT_LT(error(to_vector(y), expected), tolerance(c.dtype));
      }
  }
}

std::int64_t ones_in(const Tensor& mask) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < mask.numel(); ++i)
    count += std::popcount(mask.data<std::uint8_t>()[i]);
  return count;
}

// Returns a copy of the tensor that begins one element after the start of its storage, so that its
// address is not a multiple of 16 bytes.
Tensor shifted(const Tensor& t) {
  const Tensor memory = full({t.numel() + 1}, nan, {t.dtype()});
  const Tensor there(memory.storage(), t.shape(), t.strides(), 1, t.dtype());
  there.copy_(t);
  return there;
}

// The mask has the right bit for every element and no other bits set. The order of the bits does
// not matter: the test counts them and checks that the backward writes dy where the output is above
// 0.
TEST(BatchNormKernels, TheMaskSaysWhereTheOutputIsAboveZero) {
  if (table().mask_size(ones({2, 8})) == 0) GTEST_SKIP() << "this device reads the output instead";
  const OneThread one;
  Generator random(61);
  for (const Case& c : cases()) {
    const Step s(c, random);
    SCOPED_TRACE(c.text());
    const std::int64_t inner = product(c.shape, 2, c.shape.size());
    const bool rows = c.channels() > 1 && (c.format == MemoryFormat::channels_last || inner == 1);
    const std::int64_t run = rows ? c.channels() : inner;
    const std::int64_t lanes = 16 / static_cast<std::int64_t>(size_of(c.dtype));
    if (run % lanes == 0) {
      EXPECT_EQ(table().mask_size(s.x), s.x.numel() / lanes);
    }
    EXPECT_LE(table().mask_size(s.x), s.x.numel() / run * (run / lanes + 2));

    Tensor first;
    // The forward runs on aligned and on shifted tensors. Each of their masks is then used by a
    // backward with an aligned and with a shifted dy.
    for (const bool aligned : {true, false}) {
      const Tensor y = aligned ? poisoned(c) : shifted(poisoned(c)), mask = s.poisoned_mask();
      kernels::Normalization to = s.to(true, true, mask);
      if (!aligned) to.residual = shifted(to.residual);
      table().apply(aligned ? s.x : shifted(s.x), to, y);
      Values expected = to_vector(y);
      std::int64_t passed = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        passed += expected[i] > 0;
        expected[i] = expected[i] > 0 ? s.vdy[i] : 0;
      }
      EXPECT_EQ(ones_in(mask), passed);
      for (const bool same : {true, false}) {
        const Tensor dy = same ? s.dy : shifted(s.dy), masked = poisoned(c),
                     sums = packet(c.channels());
        table().gradient_sums(
            {.dy = dy, .saved = s.grad(true, true, mask, {}), .sums = sums, .masked_dy = masked});
        EXPECT_EQ(to_vector(masked), expected);
      }
      if (aligned) first = mask;
      else EXPECT_EQ(to_vector(mask), to_vector(first));
    }
    const Tensor y = poisoned(c), without = poisoned(c);
    table().apply(s.x, s.to(true, true, s.poisoned_mask()), y);
    table().apply(s.x, s.to(true, true), without);
    EXPECT_EQ(to_vector(y), to_vector(without));
  }
}

// With a mean of 1e4 standard deviations, the rounding of the input is the only error.
TEST(BatchNormKernels, ApplyLosesNothingAtLargeMeans) {
  Generator random(7);
  Step s({{4, 40, 10, 10}, float32, MemoryFormat::channels_last}, random);
  s.x = random_tensor(s.c, random, 1, 1e4);
  s.vx = to_vector(s.x);
  s.mean.fill_(1e4 + 1.0 / 3);
  s.vmean = to_vector(s.mean);
  const Tensor y = poisoned(s.c);
  table().apply(s.x, s.to(false, false), y);
  Values expected;
  for (std::size_t i = 0; i < s.vx.size(); ++i) expected.push_back(s.z(i, false));
  EXPECT_LT(error(to_vector(y), expected), 3e-7);
}

TEST(BatchNormKernels, NanInputsStayNan) {
  const Tensor x = zeros({2, 16, 4, 4}), y = zeros({2, 16, 4, 4});
  x.data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  table().apply(x, {zeros({16}, {float64}), ones({16}, {float64}), {}, {}, {}, true}, y);
  EXPECT_TRUE(std::isnan(y.data<float>()[5]));
}

TEST(BatchNormKernels, TheReluPassesTheGradientOfNaN) {
  for (const DType dtype : test::trained_dtypes())
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      for (const bool add : {false, true}) {
        SCOPED_TRACE(to_string(dtype) + (add ? " add" : "") + " " + to_string(format));
        const Tensor values = test::normal({3, 19, 5, 3}, float64);
        for (std::int64_t i = 0; i < values.numel(); i += 7) values.data<double>()[i] = nan;
        const Tensor x = values.to(dtype).contiguous(format),
                     dy = test::normal(x.shape(), dtype, format);
        const std::int64_t bytes = table().mask_size(x);
        kernels::Normalization to{zeros({19}, {float64}), ones({19}, {float64}), {}, {}};
        to.relu = true;
        if (add) to.residual = zeros(x.shape(), {dtype}).contiguous(format);
        if (add && bytes > 0) to.mask = zeros({bytes}, {uint8});
        const Tensor y = test::poisoned(x.shape(), dtype, format);
        table().apply(x, to, y);
        const Tensor masked = test::poisoned(x.shape(), dtype, format);
        table().gradient_sums({.dy = dy,
                               .saved = {to, x, add ? y : Tensor()},
                               .sums = packet(19),
                               .masked_dy = masked});
        const Values vx = to_vector(x), got = to_vector(masked);
        Values expected = to_vector(dy);
        for (std::size_t i = 0; i < expected.size(); ++i)
          if (vx[i] <= 0) expected[i] = 0;
        EXPECT_EQ(got, expected);
        if (add) continue;
        const Tensor dx = test::poisoned(x.shape(), dtype, format);
        table().apply_grad({.dy = dy, .saved = {to, x}, .dx = dx});
        const Values vdx = to_vector(dx);
        for (std::size_t i = 0; i < expected.size(); ++i)
          if (std::isnan(vx[i])) EXPECT_NE(vdx[i], 0);
          else EXPECT_EQ(vdx[i], expected[i]);
      }
}

TEST(BatchNormKernels, Gradients) {
  const OneThread one;
  Generator random(8);
  for (const Case& c : cases()) {
    const Step s(c, random);
    const auto C = static_cast<std::size_t>(c.channels());
    const std::size_t inner = static_cast<std::size_t>(product(c.shape, 2, c.shape.size()));
    Shape positions = c.shape;
    positions.erase(1);
    const Tensor w = rand(positions, {}, random);
    const Values vw = to_vector(w);
    const Tensor moments = zeros({kernels::packet_size(c.channels())}, {float64});
    const double n = moments.data<double>()[0] =
        static_cast<double>(s.vx.size() / C + 7);  // Other ranks have 7 elements per channel.
    for (const bool add : {false, true})
      for (const bool relu : {false, true})
        for (const bool weighted : {false, true}) {
          SCOPED_TRACE(c.text() + (add ? " add" : "") + (relu ? " relu" : "") +
                       (weighted ? " weighted" : ""));
          const Tensor y = poisoned(c), mask = s.poisoned_mask(add, relu);
          table().apply(s.x, s.to(add, relu, mask), y);
          const Values vy = to_vector(y);
          Values g(s.vx.size()), s1(C), s2(C);
          for (std::size_t i = 0; i < g.size(); ++i) {
            const auto ch = static_cast<std::size_t>(c.channel_of(i));
            // Without a residual the kernels compute the mask from x and not from the rounded y.
            g[i] = relu && !(add ? vy[i] > 0 : s.z(i, false) > 0) ? 0 : s.vdy[i];
            s1[ch] += g[i];
            s2[ch] += g[i] * (s.vx[i] - s.vmean[ch]);
          }
          const kernels::SavedForward of = s.grad(add, relu, mask, y);
          const Tensor sums = packet(c.channels()), masked = poisoned(c);
          table().gradient_sums({.dy = s.dy, .saved = of, .sums = sums});
          // Positive and negative terms cancel, so the error is measured against the size of the
          // terms.
          const double scale = std::sqrt(static_cast<double>(s.vx.size() / C)) *
                               std::sqrt(static_cast<double>(C));
          const auto close = [&](const Values& got, const Values& expected) {
            double d = 0;
            for (std::size_t i = 0; i < C; ++i)
              d += (got[i] - expected[i]) * (got[i] - expected[i]);
            EXPECT_LT(std::sqrt(d), 3 * sum_tolerance(c.dtype) * scale);
          };
          close(slice(sums, 0), s1);
          close(slice(sums, 1), s2);
          const Tensor dw = full({c.channels()}, nan, {float64}),
                       db = full({c.channels()}, nan, {float64});
          table().gradient_sums({.dy = s.dy,
                                 .saved = of,
                                 .sums = sums,
                                 .masked_dy = masked,
                                 .weight_grad = dw,
                                 .bias_grad = db});
          EXPECT_EQ(to_vector(masked), g);
          Values expected_dw(C);
          for (std::size_t i = 0; i < C; ++i) expected_dw[i] = s2[i] * s.vrstd[i];
          close(to_vector(dw), expected_dw);
          close(to_vector(db), s1);

          Values expected(g.size()), constant(g.size());
          for (std::size_t i = 0; i < g.size(); ++i) {
            const auto ch = static_cast<std::size_t>(c.channel_of(i));
            const double weight = weighted ? vw[i / inner / C * inner + i % inner] : 1,
                         r = s.vrstd[ch];
            expected[i] =
                s.vweight[ch] * r *
                (g[i] - weight * (s1[ch] / n + (s.vx[i] - s.vmean[ch]) * r * r * s2[ch] / n));
            constant[i] = s.vweight[ch] * r * g[i];
          }
          const Tensor dx = poisoned(c), in_place = s.dy.clone();
          // A variance of 0 lies below the floor eps in one of the two runs below. In this run eps
          // is added to the variance instead.
          kernels::InputGradient gradient{.dy = s.dy,
                                          .saved = of,
                                          .sums = sums,
                                          .moments = moments,
                                          .position_weights = weighted ? w : Tensor(),
                                          .dx = dx};
          table().apply_grad(gradient);
          EXPECT_LT(error(to_vector(dx), expected), 2 * tolerance(c.dtype));
          gradient.dy = gradient.dx = in_place;
          table().apply_grad(gradient);
          EXPECT_EQ(to_vector(in_place), to_vector(dx));
          if (weighted) continue;
          table().apply_grad({.dy = s.dy, .saved = of, .dx = dx});
          EXPECT_LT(error(to_vector(dx), constant), tolerance(c.dtype));
        }
  }
}

// A mean of 30,000 is rounded to float32 by up to 1e-3, which the sums and dx correct.
TEST(BatchNormKernels, GradientsLoseNothingAtLargeMeans) {
  Generator random(23);
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    Step s({{4, 40, 10, 10}, float32, format}, random);
    SCOPED_TRACE(s.c.text());
    const double mean = 3e4 + 1.0 / 3, n = 400;
    s.x = random_tensor(s.c, random, 1, 3e4);
    s.dy.copy_(random_tensor(s.c, random, 1, 1) + (s.x - 3e4));
    s.mean.fill_(mean);
    s.rstd.fill_(1);
    s.weight.fill_(1);
    s.vx = to_vector(s.x), s.vdy = to_vector(s.dy);
    Values s1(40), s2(40), expected(s.vx.size());
    for (std::size_t i = 0; i < s.vx.size(); ++i) {
      const auto ch = static_cast<std::size_t>(s.c.channel_of(i));
      s1[ch] += s.vdy[i];
      s2[ch] += s.vdy[i] * (s.vx[i] - mean);
    }
    for (std::size_t i = 0; i < s.vx.size(); ++i) {
      const auto ch = static_cast<std::size_t>(s.c.channel_of(i));
      expected[i] = s.vdy[i] - s1[ch] / n - (s.vx[i] - mean) * s2[ch] / n;
    }
    const kernels::SavedForward of{s.to(false, false), s.x, {}};
    const Tensor sums = packet(40), dx = poisoned(s.c),
                 moments = zeros({kernels::packet_size(40)}, {float64});
    moments.data<double>()[0] = n;
    table().gradient_sums({.dy = s.dy, .saved = of, .sums = sums});
    EXPECT_LT(error(slice(sums, 1), s2), sum_tolerance(float32));
    table().apply_grad({.dy = s.dy, .saved = of, .sums = sums, .moments = moments, .dx = dx});
    EXPECT_LT(error(to_vector(dx), expected), 2 * tolerance(float32));
  }
}

TEST(BatchNormKernels, AVarianceBelowTheFloorHasNoGradient) {
  Generator random(9);
  const Step s({{3, 4, 5}, float64, MemoryFormat::contiguous}, random);
  const kernels::SavedForward of{s.to(false, false), s.x, {}};
  const Tensor sums = packet(4), moments = zeros({kernels::packet_size(4)}, {float64}),
               dx = poisoned(s.c);
  moments.data<double>()[0] = 15;
  table().gradient_sums({.dy = s.dy, .saved = of, .sums = sums});
  table().apply_grad(
      {.dy = s.dy, .saved = of, .sums = sums, .moments = moments, .eps = {0.1, true}, .dx = dx});
  Values expected(s.vx.size());
  const Values s1 = slice(sums, 0);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto ch = static_cast<std::size_t>(s.c.channel_of(i));
    expected[i] = s.vweight[ch] * s.vrstd[ch] * (s.vdy[i] - s1[ch] / 15);
  }
  EXPECT_LT(error(to_vector(dx), expected), 1e-13);
}

TEST(BatchNormKernels, EmptyBatchesGiveZeroes) {
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Case c{{0, 20, 3, 3}, float32, format};
    const Tensor x = empty(c.shape, {}, format), p = packet(20), sums = packet(20);
    table().moments(x, {}, p);
    EXPECT_EQ(p.data<double>()[0], 0);
    EXPECT_EQ(slice(p, 1), Values(20, 0.0));
    EXPECT_EQ(table().mask_size(x), 0);
    for (const Tensor& residual : {Tensor(), x}) {
      const kernels::SavedForward of{
          {zeros({20}, {float64}), ones({20}, {float64}), {}, {}, residual, true}, x, x};
      sums.fill_(nan);
      table().apply(x, of.normalization, x);
      table().gradient_sums({.dy = x, .saved = of, .sums = sums});
      table().apply_grad({.dy = x, .saved = of, .sums = sums, .moments = p, .dx = x});
      EXPECT_EQ(slice(sums, 0), Values(20, 0.0));
      EXPECT_EQ(slice(sums, 1), Values(20, 0.0));
    }
  }
}

// ---- Kernels that combine several steps agree with the separate steps.

// Returns shapes that the shared memory of a device holds at once, and others.
std::vector<Case> cases_of_one_rank() {
  std::vector<Case> all = cases();
  std::erase_if(
      all, [](const Case& c) { return c.format == MemoryFormat::contiguous && c.shape[0] > 60; });
  all.push_back({{30, 136, 10, 10}, bfloat16, MemoryFormat::channels_last});
  all.push_back({{4, 24, 81, 67}, float32, MemoryFormat::channels_last});
  return all;
}

// Returns running statistics that every rule of tracking can move.
kernels::RunningStatistics running_statistics_of(std::int64_t channels) {
  return {full({channels}, 0.5, {float64}), full({channels}, 2, {float64}), full({}, 3, {int64}),
          full({}, 40, {float64})};
}

// Writes what finalize_and_apply and its two parts compute from the packet of `sums`, or from
// `moments` if it is undefined, and expects the same bits.
void expect_finalize_and_apply_is_its_parts(const Step& s, const Tensor& sums,
                                            const Tensor& moments, kernels::StatisticsUpdate update,
                                            bool add, bool relu) {
  const std::int64_t channels = s.c.channels();
  std::vector<Values> results;
  for (const bool is_one : {true, false}) {
    const Tensor to_moments = sums.defined() ? packet(channels) : moments.clone();
    kernels::Normalization to = s.to(add, relu, s.poisoned_mask(add, relu));
    to.mean = full({channels}, nan, {float64}), to.rstd = full({channels}, nan, {float64});
    update.running = running_statistics_of(channels);
    const Tensor y = poisoned(s.c);
    if (is_one) {
      table().finalize_and_apply({s.x, sums, to_moments, update, to, y});
    } else {
      table().finalize_statistics(sums, to_moments, update, to.mean, to.rstd);
      table().apply(s.x, to, y);
    }
    Values all;
    for (const Tensor& t : {to_moments.slice(0, 0, 1), to_moments.slice(0, 8, to_moments.numel()),
                            to.mean, to.rstd, update.running.mean, update.running.var,
                            update.running.batches, update.running.elements, y, to.mask})
      if (t.defined())
        for (const double value : to_vector(t)) all.push_back(value);
    results.push_back(std::move(all));
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(BatchNormKernels, FinalizeAndApplyIsItsParts) {
  using kernels::Tracking;
  Generator random(24);
  int variant = 0;
  for (const Case& c : cases()) {
    const Step s(c, random);
    const bool add = ++variant % 2 == 0, relu = variant % 3 != 0, exact = variant % 5 < 2;
    kernels::StatisticsUpdate update{
        .eps = {0.01, variant % 5 == 0},
        .tracking = std::array{Tracking::momentum, Tracking::cumulative,
                               Tracking::pooled}[static_cast<std::size_t>(variant % 3)],
        .momentum = 0.3};
    SCOPED_TRACE(c.text() + (add ? " add" : "") + (relu ? " relu" : "") + (exact ? " exact" : ""));
    const std::int64_t size = exact ? kernels::exact_packet_size(c.channels())
                                    : kernels::packet_size(c.channels());
    const Tensor sums = full({size}, nan, {float64}), moments = packet(c.channels());
    table().moment_sums(s.x, {}, header, sums);
    table().moments(s.x, {}, moments);
    for (const double ranks : {0.0, 1.0, 2.0}) {  // of 2 ranks the fingerprints disagree
      update.ranks = ranks;
      expect_finalize_and_apply_is_its_parts(s, sums, moments, update, add, relu);
    }
    update.ranks = 0;
    expect_finalize_and_apply_is_its_parts(s, {}, moments, update, add, relu);
  }
}

TEST(BatchNormKernels, FinalizeAndApplyWithoutElementsMovesRunningStatistics) {
  Generator random(25);
  const Tensor of_others =
                   random_tensor({{6, 20, 3, 3}, float32, MemoryFormat::contiguous}, random),
               sums = packet(20), moments = packet(20);
  table().moment_sums(of_others, {}, header, sums);
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = empty({0, 20, 3, 3}, {}, format), mean = full({20}, nan, {float64}),
                 rstd = full({20}, nan, {float64}), back = packet(20);
    const kernels::StatisticsUpdate update{.momentum = 1, .running = running_statistics_of(20)};
    table().finalize_and_apply(
        {x, sums, back, update, {.mean = mean, .rstd = rstd, .weight = {}, .bias = {}}, x});
    table().moments(of_others, {}, moments);
    EXPECT_LT(error(to_vector(mean), slice(moments, 0)), sum_tolerance(float32));
    EXPECT_LT(error(to_vector(update.running.mean), slice(moments, 0)), sum_tolerance(float32));
    EXPECT_EQ(update.running.batches.item<int>(), 4);
  }
}

TEST(BatchNormKernels, GradientSumsHaveAHeaderAndGiveTheGradientsOfTheParameters) {
  Generator random(22);
  int variant = 0;
  for (const Case& c : cases_of_one_rank()) {
    const Step s(c, random);
    const bool add = ++variant % 2 == 0, relu = variant % 3 != 0, masks = variant % 4 < 2;
    SCOPED_TRACE(c.text() + (add ? " add" : "") + (relu ? " relu" : "") + (masks ? " masked" : ""));
    const Tensor y = poisoned(c), mask = s.poisoned_mask(add, relu);
    table().apply(s.x, s.to(add, relu, mask), y);
    const auto vector = [&] { return full({c.channels()}, nan, {float64}); };
    const Tensor sums = packet(c.channels()), dw = vector(), db = vector();
    table().gradient_sums({.dy = s.dy,
                           .saved = s.grad(add, relu, mask, y),
                           .header = header,
                           .sums = sums,
                           .masked_dy = masks ? poisoned(c) : Tensor(),
                           .weight_grad = dw,
                           .bias_grad = db});
    Values of_weight = slice(sums, 1);
    for (std::size_t i = 0; i < of_weight.size(); ++i) of_weight[i] *= s.vrstd[i];
    EXPECT_EQ(to_vector(dw), of_weight);
    EXPECT_EQ(to_vector(db), slice(sums, 0));
    EXPECT_EQ(to_vector(sums.slice(0, 0, kernels::packet_header_size)),
              Values({0, 0, 1, 2, 3, 9, 0, 0}));
  }
}

// Expects `sums` to be the sums that follow from `moments`, to the bit.
void expect_sums(const Tensor& sums, const Tensor& moments) {
  const std::int64_t C = moments.numel() / 2 - kernels::packet_header_size / 2;
  const double n = moments.data<double>()[0];
  const Values mean = slice(moments, 0), m2 = slice(moments, 1);
  for (std::int64_t c = 0; c < C; ++c) {
    const double* of = sums.data<double>() + kernels::packet_header_size + c;
    const kernels::ChannelMoments channel{mean[static_cast<std::size_t>(c)],
                                          m2[static_cast<std::size_t>(c)]};
    if (sums.numel() == kernels::exact_packet_size(C)) {
      const auto [first, second] = kernels::exact_sums_of(n, channel);
      EXPECT_EQ(of[0], first.high);
      EXPECT_EQ(of[C], second.high);
      EXPECT_EQ(of[2 * C], first.low);
      EXPECT_EQ(of[3 * C], second.low);
    } else {
      const double first = n * channel.mean;
      const volatile double product = first * channel.mean;
      EXPECT_EQ(of[0], first);
      // A compiler may fuse the product and the sum into one operation.
      EXPECT_TRUE(of[C] == channel.m2 + product ||
                  of[C] == std::fma(first, channel.mean, channel.m2));
    }
  }
}

TEST(BatchNormKernels, SumsBecomeMomentsAgainAndMoveRunningStatistics) {
  Generator random(23);
  const Case c{{12, 10, 5, 5}, float32, MemoryFormat::channels_last};
  const Tensor x = random_tensor(c, random, 1, 30), mean = full({10}, nan, {float64}),
               rstd = full({10}, nan, {float64}), moments = packet(10);
  table().moments(x, {}, moments);
  for (const bool exact : {false, true}) {
    const Shape size{exact ? kernels::exact_packet_size(10) : kernels::packet_size(10)};
    const Tensor back = packet(10), sums = full(size, nan, {float64});
    table().moment_sums(x, {}, header, sums);
    EXPECT_EQ(to_vector(sums.slice(0, 0, kernels::packet_header_size)),
              Values({300, 0, 1, 2, 3, 9, 0, 0}));
    expect_sums(sums, moments);
    const Tensor poisoned_header = sums.clone();
    // If the number of ranks is not given, no kernel reads the rest of the header.
    for (int i = 2; i < 8; ++i) poisoned_header.data<double>()[i] = nan;
    const Tensor without_ranks = packet(10);
    table().finalize_statistics(poisoned_header, without_ranks, {.momentum = 1}, mean, rstd);
    kernels::StatisticsUpdate update{
        .momentum = 1,
        .running = {zeros({10}, {float64}), ones({10}, {float64}), zeros({}, {int64}), {}}};
    table().finalize_statistics(sums, back, update, mean, rstd);
    EXPECT_LT(error(slice(back, 0), slice(moments, 0)), 1e-15);
    EXPECT_LT(error(slice(back, 1), slice(moments, 1)), 1e-11);
    EXPECT_EQ(slice(without_ranks, 0), slice(back, 0));
    EXPECT_EQ(slice(without_ranks, 1), slice(back, 1));
    EXPECT_EQ(to_vector(mean), slice(back, 0));
    EXPECT_LT(error(to_vector(update.running.mean), slice(moments, 0)), 1e-15);
    EXPECT_EQ(update.running.batches.item<int>(), 1);
    // Taken as the sums of two ranks, the fingerprints disagree; taken as those of one rank, they
    // agree.
    for (const double ranks : {2.0, 1.0}) {
      update.ranks = ranks;
      table().finalize_statistics(sums, back, update, mean, rstd);
    }
    EXPECT_EQ(update.running.batches.item<int>(), 2);
    update.ranks = 0;
    table().finalize_statistics({}, moments, update, mean, rstd);
    EXPECT_EQ(to_vector(mean), slice(moments, 0));
    EXPECT_EQ(update.running.batches.item<int>(), 3);
  }
}

TEST(BatchNormKernels, TheThreadCountChangesNoBit) {
  Generator random(10);
  const int before = num_threads();
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    for (const Shape& shape : {Shape{16, 16, 30, 30}, Shape{4, 300, 17, 17}}) {
      const Step s({shape, float32, format}, random);
      std::vector<Values> results;
      for (const int threads : {1, 2, 3, 7}) {
        set_num_threads(threads);
        const Tensor p = packet(shape[1]), sums = packet(shape[1]);
        p.fill_(0), sums.fill_(0);
        table().moments(s.x, {}, p);
        table().gradient_sums({.dy = s.dy, .saved = {s.to(false, true), s.x}, .sums = sums});
        Values both = to_vector(p), second = to_vector(sums);
        both.insert(both.end(), second.begin(), second.end());
        results.push_back(both);
        EXPECT_EQ(results.back(), results.front());
      }
    }
  set_num_threads(before);
}

}  // namespace
}  // namespace tutti::batch_norm_test
