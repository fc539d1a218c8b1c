// Embedding kernels against plain loops, over layouts of indices, tables and gradients, with rows
// that occur often, rarely or never.
#include "random_layout.h"
#include "tables.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

using test::random_layout;

void gather(const Tensor& weight, const Tensor& indices, const Tensor& out) {
  test::indexing().gather("embedding", kernels::row_elements(weight, out.shape()), 0,
                          indices.unsqueeze(-1).expand(out.shape()), out);
}

TEST(EmbeddingKernels, GatherTakesTheRows) {
  Generator generator(401);
  for (const DType dtype : {float32, float64, bfloat16, float16, int64, uint8, boolean})
    for (const Shape& positions : {Shape{0}, Shape{5}, Shape{3, 4}}) {
      const Tensor weight = random_layout(randint(2, {9, 7}, {dtype}, generator), generator);
      const Tensor indices = random_layout(randint(9, positions, {int64}, generator), generator);
      Shape shape = positions;
      shape.push_back(7);
      const Tensor out = full(shape, 1, {dtype});
      gather(weight, indices, out);
      const auto rows = to_vector(weight), at = to_vector(indices), values = to_vector(out);
      for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(values[i], rows[static_cast<std::size_t>(at[i / 7]) * 7 + i % 7])
            << to_string(dtype);
    }
}

TEST(EmbeddingKernels, AnIndexOutsideIsAnErrorOrNan) {
  const Tensor weight = ones({3, 2}), out = full({1, 2}, 7);
  for (const double bad : {-1.0, 3.0})
    if (test::test_device().is_cpu()) {
      EXPECT_THROW(gather(weight, tensor({bad}, {int64}), out), ValueError);
    } else {
      gather(weight, tensor({bad}, {int64}), out.fill_(7));
      for (const double v : to_vector(out)) EXPECT_TRUE(std::isnan(v));
    }
}

TEST(EmbeddingKernels, GradientsAddUpInTheOrderOfThePositions) {
  Generator generator(402);
  // Rows that occur once and a thousand times, tables of one row, and counts next to the powers of
  // two that the sort on a GPU uses.
  for (const auto& [count, rows, width] : std::vector<std::array<std::int64_t, 3>>{
           {1, 1, 1}, {7, 1000, 3}, {511, 40, 5}, {513, 3, 33}, {1500, 1, 2}, {2600, 700, 1}})
    for (const DType dtype : test::trained_dtypes()) {
      const DType wide = accumulate_dtype(dtype);
      const Tensor indices = random_layout(randint(rows, {count}, {int64}, generator), generator);
      const Tensor g =
          random_layout(randn({count, width}, {float64}, generator).to(dtype), generator);
      const Tensor before = randn({rows, width}, {wide}, generator),
                   sum = random_layout(before, generator);
      test::indexing().add_rows(g, indices, sum);
      const auto at = to_vector(indices), values = to_vector(g);
      std::vector<double> expected = to_vector(before);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto n = static_cast<std::size_t>(width);
        expected[static_cast<std::size_t>(at[i / n]) * n + i % n] += values[i];
      }
      // The sums are rounded once, whatever the dtype.
      if (wide == float32)
        for (double& value : expected) value = static_cast<double>(static_cast<float>(value));
      EXPECT_EQ(to_vector(sum), expected) << count << " " << rows << " " << to_string(dtype);
    }
}

}  // namespace
}  // namespace tutti
