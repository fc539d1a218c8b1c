// Tests of the generator: known answers of Philox4x32-10, streams that can be saved and moved, and
// the numbers that are drawn from them.
#include <tutti/core/create.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <thread>

namespace tutti {
namespace {

// Random123's kat_vectors for philox4x32 with 10 rounds, in the part that a 64-bit counter and key
// reach (counter words 2 and 3 are 0): counter 0, key 0.
TEST(Philox, KnownAnswer) {
  Generator generator(0);
  EXPECT_EQ(generator.next(), 0x6627e8d5u);
  EXPECT_EQ(generator.next(), 0xe169c58du);
  EXPECT_EQ(generator.next(), 0xbc57ac4cu);
  EXPECT_EQ(generator.next(), 0x9b00dbd8u);
}

TEST(Philox, IsAFunctionOfSeedAndPosition) {
  Generator a(123456789012345), b(123456789012345);
  std::vector<std::uint32_t> stream;
  for (int i = 0; i < 100; ++i) stream.push_back(a.next());
  for (std::uint64_t position : {0u, 1u, 5u, 42u, 99u}) {
    b.set_state({123456789012345, position});
    EXPECT_EQ(b.next(), stream[position]);
    EXPECT_EQ(b.state().position, position + 1);
  }
  Generator other(123456789012346);
  int same = 0;
  for (const std::uint32_t value : stream) same += other.next() == value;
  EXPECT_EQ(same, 0);
}

TEST(Random, SavedStateContinuesTheStream) {
  Generator generator(7);
  for (int i = 0; i < 13; ++i) generator.normal();
  const Generator::State state = generator.state();
  const auto first = to_vector(randn({5}, {}, generator));
  generator.set_state(state);
  EXPECT_EQ(to_vector(randn({5}, {}, generator)), first);
}

TEST(Random, DefaultGeneratorBelongsToTheThread) {
  manual_seed(3);
  const auto here = to_vector(rand({4}));
  std::vector<double> there;
  std::thread([&] {
    manual_seed(3);
    there = to_vector(rand({4}));
  }).join();
  EXPECT_EQ(here, there);
  EXPECT_NE(to_vector(rand({4})), here);
  manual_seed(3);
  EXPECT_EQ(to_vector(rand({4})), here);
}

// distributed/thread_defaults_test.cpp has more about the seeds of threads.
class RandomThreads : public ::testing::Test {
 protected:
  ~RandomThreads() override { manual_seed(0); }
  static std::vector<double> draw_in_new_thread() {
    std::vector<double> numbers;
    std::thread([&] { numbers = to_vector(rand({4})); }).join();
    return numbers;
  }
};

TEST_F(RandomThreads, EachDrawsNumbersOfItsOwn) {
  manual_seed(5);
  std::set<std::vector<double>> all{to_vector(rand({4}))};
  for (int i = 0; i < 4; ++i) all.insert(draw_in_new_thread());
  EXPECT_EQ(all.size(), 5u);
}

TEST_F(RandomThreads, BeginAnewWithASeedOfTheMainThread) {
  const auto two_threads = [](std::uint64_t seed) {
    manual_seed(seed);
    const auto first = draw_in_new_thread();
    return std::pair(first, draw_in_new_thread());
  };
  const auto five = two_threads(5);
  EXPECT_EQ(two_threads(5), five);
  EXPECT_NE(two_threads(6), five);
}

TEST_F(RandomThreads, AreNotSeededByAnotherThread) {
  manual_seed(5);
  for (int i = 0; i < 2; ++i) draw_in_new_thread();
  const auto third = draw_in_new_thread();
  manual_seed(5);
  draw_in_new_thread();
  std::thread([] { manual_seed(9); }).join();  // the second thread with a generator
  EXPECT_EQ(draw_in_new_thread(), third);
}

TEST(Random, UniformFillsItsInterval) {
  constexpr int n = 20000, bins = 20;
  Generator generator(11);
  std::vector<int> count(bins);
  for (const double v : to_vector(rand({n}, {float64}, generator))) {
    ASSERT_TRUE(v >= 0 && v < 1);
    ++count[static_cast<std::size_t>(v * bins)];
  }
  double chi2 = 0;
  for (const int c : count) chi2 += std::pow(c - n / bins, 2) / (n / bins);
  EXPECT_LT(chi2, 43.8);  // 19 degrees of freedom, p = 0.001; the seed is fixed
}

TEST(Random, FloatsStayBelowOne) {
  // The uniform number 1 - 2^-53 would round to 1 in a narrower type.
  Generator generator(12);
  for (const DType dtype : {float32, bfloat16, float16}) {
    const auto values = to_vector(rand({20000}, {dtype}, generator));
    EXPECT_LT(*std::max_element(values.begin(), values.end()), 1.0) << to_string(dtype);
    EXPECT_GT(*std::max_element(values.begin(), values.end()), 0.99) << to_string(dtype);
  }
}

TEST(Random, NormalHasItsMoments) {
  Generator generator(13);
  const auto x = to_vector(randn({40000}, {float64}, generator));
  double mean = 0, second = 0, fourth = 0;
  for (const double v : x) mean += v / 40000;
  for (const double v : x) second += v * v / 40000, fourth += v * v * v * v / 40000;
  EXPECT_NEAR(mean, 0, 4.0 / 200);
  EXPECT_NEAR(second, 1, 4 * std::sqrt(2.0) / 200);
  EXPECT_NEAR(fourth, 3, 4 * std::sqrt(96.0) / 200);
}

TEST(Random, IntegersAndPermutations) {
  Generator generator(14);
  std::vector<int> count(7);
  for (int i = 0; i < 7000; ++i) ++count[static_cast<std::size_t>(generator.below(7))];
  for (const int c : count) EXPECT_NEAR(c, 1000, 130);
  EXPECT_THROW(generator.below(0), ValueError);
  const auto order = generator.permutation(50);
  std::vector<bool> seen(50);
  for (const std::int64_t i : order) seen[static_cast<std::size_t>(i)] = true;
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 50);
  EXPECT_NE(order, generator.permutation(50));
  EXPECT_TRUE(generator.permutation(0).empty());
}

TEST(Random, BernoulliDrawsOneNumberForEachElement) {
  Generator generator(15);
  const auto x = to_vector(bernoulli(0.3, {10000}, {}, generator));
  EXPECT_EQ(generator.state().position, 10000u);
  double ones_drawn = 0;
  for (const double v : x) ones_drawn += v;
  EXPECT_NEAR(ones_drawn / 1e4, 0.3, 4 * std::sqrt(0.21 / 1e4));
  EXPECT_EQ(to_vector(bernoulli(0, {3})), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(to_vector(bernoulli(1, {3})), (std::vector<double>{1, 1, 1}));
  for (const double p : {-0.1, 1.1, std::nan("")}) EXPECT_THROW(bernoulli(p, {3}), ValueError) << p;
}

}  // namespace
}  // namespace tutti
