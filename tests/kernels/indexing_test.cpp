// Indexing kernels against plain loops, over layouts, dtypes, and indices that repeat.
#include "random_layout.h"
#include "tables.h"

#include <gtest/gtest.h>

namespace tutti::indexing_test {
namespace {

using test::random_layout;

const kernels::Indexing& table() { return test::indexing(); }

// A tensor's shape, the dimension that is indexed, and the shape of the indices.
struct Case {
  Shape x;
  int dim;
  Shape index;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {{7}, 0, {3}},
      {{1}, 0, {9}},
      {{5, 4}, 0, {6, 4}},
      {{5, 4}, 1, {3, 2}},
      {{3, 70, 5}, 1, {2, 600, 4}},
      {{2, 3, 4, 5}, 2, {2, 3, 1, 5}},
      {{2, 3, 4, 300}, 0, {5, 3, 4, 300}},
      {{3, 4}, 1, {0, 4}},
      {{3, 4}, 1, {3, 0}},
  };
  return all;
}

// Calls body(position in the index, position in x) in the row-major order of the index.
template <class Body>
void for_each_element(const Case& c, const std::vector<double>& index, const Body& body) {
  for (std::size_t i = 0; i < index.size(); ++i) {
    auto rest = static_cast<std::int64_t>(i);
    std::int64_t at = 0, scale = 1;
    for (int d = c.x.size() - 1; d >= 0; --d) {
      at += scale * (d == c.dim ? static_cast<std::int64_t>(index[i]) : rest % c.index[d]);
      rest /= c.index[d];
      scale *= c.x[d];
    }
    body(i, static_cast<std::size_t>(at));
  }
}

TEST(IndexingKernels, GatherTakesTheElements) {
  Generator generator(601);
  for (const Case& c : cases())
    for (const DType dtype : {float32, float64, bfloat16, float16, int64, uint8, boolean}) {
      const Tensor x = random_layout(randint(2, c.x, {dtype}, generator), generator);
      const Tensor index =
          random_layout(randint(c.x[c.dim], c.index, {int64}, generator), generator);
      const Tensor out = random_layout(full(c.index, 1, {dtype}), generator);
      table().gather("gather", x, c.dim, index, out);
      const auto from = to_vector(x), values = to_vector(out);
      for_each_element(c, to_vector(index), [&](std::size_t i, std::size_t at) {
        ASSERT_EQ(values[i], from[at]) << to_string(dtype) << " " << to_string(c.index);
      });
    }
}

TEST(IndexingKernels, OneIndexMayServeAWholeSlice) {
  Generator generator(602);
  const Tensor x = random_layout(randn({4, 5, 6}, {}, generator), generator);
  const Tensor index = tensor({3, 0, 3}, {int64}).reshape({3, 1, 1}).expand({3, 5, 6});
  const Tensor out = random_layout(zeros({3, 5, 6}), generator);
  table().gather("gather", x, 0, index, out);
  for (const auto& [row, from] : {std::pair{0, 3}, {1, 0}, {2, 3}})
    EXPECT_EQ(to_vector(out.select(0, row)), to_vector(x.select(0, from)));
}

TEST(IndexingKernels, AnIndexOutsideIsAnErrorOrNan) {
  const Tensor x = ones({3, 2}), out = full({1, 2}, 7);
  for (const double bad : {-1.0, 3.0}) {
    const Tensor index = tensor({bad, 1}, {1, 2}, {int64});
    if (test::test_device().is_cpu()) {
      EXPECT_THROW(table().gather("gather", x, 0, index, out), ValueError);
      EXPECT_EQ(to_vector(out), (std::vector<double>{7, 7}));
    } else {
      const Tensor sums = zeros({3, 2});
      table().gather("gather", x, 0, index, out);
      table().scatter_add("gather", ones({1, 2}), 0, index, sums);
      EXPECT_TRUE(std::isnan(to_vector(out)[0]));
      EXPECT_EQ(to_vector(out)[1], 1);
      EXPECT_EQ(to_vector(sums), (std::vector<double>{0, 0, 0, 1, 0, 0}));
    }
  }
}

TEST(IndexingKernels, GradientsAddUpInTheOrderOfThePositions) {
  Generator generator(603);
  for (const Case& c : cases())
    for (const DType dtype : test::trained_dtypes()) {
      const DType wide = accumulate_dtype(dtype);
      const Tensor index =
          random_layout(randint(c.x[c.dim], c.index, {int64}, generator), generator);
      const Tensor g = random_layout(randn(c.index, {float64}, generator).to(dtype), generator);
      const Tensor before = randn(c.x, {wide}, generator), sums = random_layout(before, generator);
      table().scatter_add("gather", g, c.dim, index, sums);
      const auto values = to_vector(g);
      std::vector<double> expected = to_vector(before);
      // The row-major order of the index is the order along the dimension for each element of x.
      for_each_element(c, to_vector(index), [&](std::size_t i, std::size_t at) {
        expected[at] = wide == float64 ? expected[at] + values[i]
                                       : static_cast<double>(static_cast<float>(expected[at]) +
                                                             static_cast<float>(values[i]));
      });
      EXPECT_EQ(to_vector(sums), expected) << to_string(dtype) << " " << to_string(c.index);
    }
}

TEST(IndexingKernels, GradientsAddUpInTheDtypeOfTheOutput) {
  const Tensor g = full({1000}, 0.1), index = zeros({1000}, {int64}), out = zeros({2}, {float64});
  table().scatter_add("gather", g, 0, index, out);
  EXPECT_NEAR(to_vector(out)[0], 1000 * double{0.1f}, 1e-9);
  EXPECT_EQ(to_vector(out)[1], 0);
}

}  // namespace
}  // namespace tutti::indexing_test
