// The formulas of batch normalisation that host and device share, on single channels.
#include <tutti/core/random.h>
#include <tutti/kernels/batch_norm_math.h>

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

namespace tutti::kernels::batch_norm_math_test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// The sum as an all-reduce makes it: high and low parts each by itself.
DoubleDouble added(DoubleDouble a, DoubleDouble b) { return {a.high + b.high, a.low + b.low}; }

// Counts that differ a thousandfold between ranks and are no round numbers. 78 digits are kept of n
// mean^2, of which M2 is what remains: a few 2^-78 (mean / std)^2, less than the 2^-53 mean / std
// of the input's rounding up to some 2^23.
TEST(BatchNormMath, ExactSumsAreRightAtLargeMeans) {
  Generator random(41);
  for (const double mean : {0.0, 1e4, 1e6, 1e8})
    for (const int ranks : {1, 2, 5, 64}) {
      SCOPED_TRACE(std::to_string(mean) + " " + std::to_string(ranks));
      DoubleDouble count{};
      ExactChannelSums total{};
      std::vector<std::array<long double, 3>> all;  // n, mean, M2
      long double n = 0, sum = 0;
      for (int r = 0; r < ranks; ++r) {
        const double own = 0.1 + std::ldexp(random.uniform(), static_cast<int>(random.below(10)));
        const double at = mean + random.uniform(), m2 = own * random.uniform();
        all.push_back({own, at, m2});
        n += own, sum += static_cast<long double>(own) * (at - mean);
        count = added(count, split({own, 0}));
        const ExactChannelSums sums = exact_sums_of(own, {at, m2});
        total = {added(total.first, sums.first), added(total.second, sums.second)};
      }
      long double m2 = 0;
      for (const auto& [own, at, inside] : all)
        m2 += inside + own * (at - mean - sum / n) * (at - mean - sum / n);
      const DoubleDouble got_n = exact_sum(count.high, count.low);
      const ChannelMoments got = moments_of(got_n, total);
      EXPECT_NEAR(got_n.high, static_cast<double>(n), 4e-16 * static_cast<double>(n));
      EXPECT_NEAR(got.mean, static_cast<double>(mean + sum / n), 3e-16 * (1 + mean));
      const double ratio = mean * mean * static_cast<double>(n / m2);
      EXPECT_NEAR(got.m2 / static_cast<double>(m2), 1, 1e-14 + std::ldexp(ratio, -76));
    }
}

TEST(BatchNormMath, SumsOfMomentsThatAreNotFiniteAreNotFinite) {
  for (const double bad : {nan, double{INFINITY}, -double{INFINITY}}) {
    const ChannelMoments exact = moments_of(exact_sum(3, 0), exact_sums_of(3, {bad, nan})),
                         plain = moments_of(1.0 / 3, sums_of(3, {bad, nan}));
    for (const ChannelMoments& got : {exact, plain}) {
      EXPECT_FALSE(std::isfinite(got.mean));
      EXPECT_TRUE(std::isnan(got.m2));
    }
  }
}

TEST(BatchNormMath, ASplitNumberLosesNothing) {
  for (const double number : {0.0, 1.0, -3.7, 1e300, 1.0 / 3, 123456789.123456789}) {
    const DoubleDouble parts = split({number, 0});
    EXPECT_EQ(parts.high + parts.low, number);
    int exponent = 0;
    const double digits = std::ldexp(std::frexp(parts.high, &exponent), 26);
    EXPECT_EQ(digits, std::trunc(digits)) << "the high part has 26 bits";
  }
  EXPECT_EQ(split({double{INFINITY}, 0}).low, 0);
  EXPECT_EQ(split({nan, 0}).low, 0);
}

TEST(BatchNormMath, FingerprintsAgreeOnlyIfAllAreEqual) {
  const double h = 0xfffff;  // the largest
  for (const double ranks : {1.0, 2.0, 3.0, 4096.0})
    EXPECT_TRUE(fingerprints_agree(ranks * h, ranks * h * h, ranks)) << ranks;
  for (const double ranks : {2.0, 3.0, 4096.0})
    EXPECT_FALSE(fingerprints_agree((ranks - 1) * h + (h - 1),
                                    (ranks - 1) * h * h + (h - 1) * (h - 1), ranks))
        << ranks;
}

}  // namespace
}  // namespace tutti::kernels::batch_norm_math_test
