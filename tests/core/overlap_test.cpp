// Tests of what may be read while a tensor is changed, against the sets of all addresses.
#include <tutti/core/create.h>
#include <tutti/core/overlap.h>

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace tutti {
namespace {

// Returns the places in the storage of all elements.
std::set<std::int64_t> places(const Tensor& x) {
  std::set<std::int64_t> found{x.offset()};
  for (int d = 0; d < x.rank(); ++d) {
    std::set<std::int64_t> next;
    for (const std::int64_t at : found)
      for (std::int64_t i = 0; i < x.shape()[d]; ++i) next.insert(at + i * x.strides()[d]);
    found = std::move(next);
  }
  return found;
}

TEST(Overlap, IsThatOfTheAddressesForAnyTwoViews) {
  const Tensor memory = zeros({200});
  std::mt19937 random(5);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  const auto view = [&] {
    Shape shape;
    Strides strides;
    for (std::int64_t rank = draw(0, 3); rank > 0; --rank) {
      shape.push_back(draw(1, 4));
      strides.push_back(draw(0, 13));
    }
    return memory.alias(shape, strides, draw(0, 60));
  };
  int overlapping = 0;
  for (int i = 0; i < 5000; ++i) {
    const Tensor a = view(), b = view();
    const std::set<std::int64_t> of_a = places(a), of_b = places(b);
    const bool expected =
        std::ranges::any_of(of_a, [&](std::int64_t at) { return of_b.contains(at); });
    overlapping += expected;
    ASSERT_EQ(overlap(a, b), expected)
        << to_string(a.shape()) << to_string(a.strides()) << a.offset() << " and "
        << to_string(b.shape()) << to_string(b.strides()) << b.offset();
  }
  EXPECT_GT(overlapping, 500);
  EXPECT_LT(overlapping, 4500);
}

TEST(Overlap, CountsBytesOfForeignMemory) {
  std::vector<std::int64_t> memory(8);
  const Tensor wide = from_blob(memory.data(), {4}, int64),
               narrow = from_blob(memory.data() + 3, {2}, float32),
               apart = from_blob(memory.data() + 4, {2}, float32);
  EXPECT_TRUE(overlap(wide, narrow));
  EXPECT_FALSE(overlap(wide, apart));
  EXPECT_FALSE(overlap(wide, empty({0})));
  EXPECT_FALSE(overlap(wide, zeros({4}, {int64})));
}

}  // namespace
}  // namespace tutti
