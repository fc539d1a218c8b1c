// Reductions: every operation, dtype, set of dimensions and layout against plain loops in float64.
#include <tutti/core/parallel.h>

#include "random_layout.h"
#include "tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace tutti::reduce_test {
namespace {

using kernels::Reduction;
using test::finite_relative_error;
using test::random_layout;
using test::random_shape;

const kernels::Reduce& table() { return test::reduce(); }

// The definition of a reduction, row-major over `kept`.
std::vector<double> reference(Reduction op, const Tensor& x, const Shape& kept) {
  std::vector<double> result(static_cast<std::size_t>(numel(kept)), op == Reduction::sum ? 0
                                                                    : op == Reduction::max
                                                                        ? -INFINITY
                                                                        : INFINITY);
  const std::vector<double> values = to_vector(x);
  const Strides strides = dense_strides(kept);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::int64_t rest = static_cast<std::int64_t>(i), at = 0;
    for (int d = x.rank() - 1; d >= 0; --d) {
      if (kept[d] != 1) at += rest % x.shape()[d] * strides[d];
      rest /= x.shape()[d];
    }
    double& r = result[static_cast<std::size_t>(at)];
    if (op == Reduction::sum) r += values[i];
    else if (op == Reduction::max) r = std::max(r, values[i]);
    else r = std::min(r, values[i]);
  }
  return result;
}

void check(Reduction op, const Tensor& x, const Shape& kept, Generator& generator) {
  const Tensor out = random_layout(zeros(kept, {x.dtype()}), generator);
  out.fill_(is_floating(x.dtype()) ? NAN : -1);
  table().reduce(op, x, out);
  const double tolerance = x.dtype() == float64    ? 1e-14
                           : x.dtype() == float32  ? 1e-7
                           : x.dtype() == bfloat16 ? 4e-3
                           : x.dtype() == float16  ? 5e-4
                                                   : 0;
  EXPECT_LE(finite_relative_error(to_vector(out), reference(op, x, kept)), tolerance)
      << static_cast<int>(op) << " " << to_string(x.dtype()) << " " << to_string(x.shape())
      << " -> " << to_string(kept);
}

TEST(ReduceKernels, MatchPlainLoopsInEveryLayout) {
  Generator generator(201);
  for (int round = 0; round < 60; ++round)
    for (const DType dtype : test::trained_dtypes({int64}))
      for (const Reduction op : {Reduction::sum, Reduction::max, Reduction::min}) {
        const Shape shape = random_shape(generator);
        if (op != Reduction::sum && numel(shape) == 0) continue;
        const Tensor x =
            random_layout((dtype == int64 ? randint(100, shape, {int64}, generator)
                                          : randn(shape, {float64}, generator).to(dtype)),
                          generator);
        Shape kept = shape;
        for (std::int64_t& size : kept)
          if (generator.below(2)) size = 1;
        check(op, x, kept, generator);
      }
}

TEST(ReduceKernels, LargeInputsInTheLayoutsThatTrainingUses) {
  Generator generator(202);
  const Tensor image = randn({4, 48, 28, 25}, {}, generator);
  const Tensor rows = randn({2000, 70}, {}, generator);
  for (const Reduction op : {Reduction::sum, Reduction::max, Reduction::min}) {
    for (const Tensor& x : {image, image.contiguous(MemoryFormat::channels_last)})
      for (const Shape& mask : {Shape{0, 1, 0, 0}, Shape{1, 1, 0, 0}, Shape{1, 0, 1, 1},
                                Shape{0, 0, 0, 0}, Shape{0, 1, 1, 1}}) {
        Shape kept = x.shape();
        for (int d = 0; d < 4; ++d) kept[d] = mask[d] ? kept[d] : 1;
        check(op, x, kept, generator);
      }
    check(op, rows, {1, 70}, generator);
    check(op, rows, {2000, 1}, generator);
    check(op, rows.transpose(0, 1), {70, 1}, generator);
  }
}

TEST(ReduceKernels, ExpandedInputs) {
  Generator generator(203);
  const Tensor x = randn({5, 1}, {}, generator).expand({5, 300});
  check(Reduction::sum, x, {5, 1}, generator);
  check(Reduction::sum, x, {1, 300}, generator);
  check(Reduction::sum, x, {1, 1}, generator);
}

TEST(ReduceKernels, SumsDoNotLoseSmallTerms) {
  // In float32 2^24 + 1 = 2^24: a running float sum would stop there.
  const Tensor x = ones({(1 << 24) + 1024}), out = empty({1});
  table().reduce(Reduction::sum, x, out);
  EXPECT_EQ(out.item<double>(), (1 << 24) + 1024);
  const Tensor low = ones({100000}, {bfloat16}), low_out = empty({1}, {bfloat16});
  table().reduce(Reduction::sum, low, low_out);
  EXPECT_NEAR(low_out.item<double>(), 100000, 256);  // its own rounding only
  const Tensor kept = full({1}, NAN);
  table().reduce(Reduction::sum, low, kept);
  EXPECT_EQ(kept.item<double>(), 100000);
}

TEST(ReduceKernels, NanAndInfinity) {
  const Tensor x = tensor({1, NAN, 3, -INFINITY, -INFINITY, -INFINITY}, {2, 3}),
               out = empty({2, 1});
  table().reduce(Reduction::max, x, out);
  EXPECT_EQ(finite_relative_error(to_vector(out), {NAN, -INFINITY}), 0);
  const Tensor lowest = full({40}, 0, {int64}), one = empty({1}, {int64});
  for (std::int64_t i = 0; i < 40; ++i) lowest.data<std::int64_t>()[i] = INT64_MIN;
  table().reduce(Reduction::max, lowest, one);
  EXPECT_EQ(one.data<std::int64_t>()[0], INT64_MIN);
}

TEST(ReduceKernels, ArgmaxTakesTheFirst) {
  Generator generator(204);
  for (int round = 0; round < 60; ++round) {
    const Shape shape = random_shape(generator, 1);
    const int dim = static_cast<int>(generator.below(shape.size()));
    if (numel(shape) == 0) continue;
    const Tensor x = random_layout(randint(4, shape, {float32}, generator), generator);
    Shape kept = shape;
    kept[dim] = 1;
    const Tensor out = random_layout(zeros(kept, {int64}), generator);
    out.fill_(-1);
    table().topk(x, dim, out);
    const auto index = to_vector(out), best = reference(Reduction::max, x, kept);
    const auto rows = to_vector(x.transpose(dim, -1));
    const auto flat = to_vector(out.transpose(dim, -1)),
               top = to_vector(tensor(best, kept).transpose(dim, -1));
    const auto size = static_cast<std::size_t>(shape[dim]);
    for (std::size_t i = 0; i < flat.size(); ++i) {
      std::size_t first = 0;
      while (rows[i * size + first] != top[i]) ++first;
      EXPECT_EQ(flat[i], static_cast<double>(first));
    }
  }
  const Tensor out = empty({1}, {int64});
  table().topk(tensor({1, NAN, 5, NAN}), 0, out);
  EXPECT_EQ(out.item<int>(), 1);
}

TEST(ReduceKernels, TopkSortsTheLargestAndTakesEqualOnesInTheirOrder) {
  Generator generator(206);
  for (const std::int64_t size : {1, 5, 70, 2300})
    for (const DType dtype : {float32, float64, bfloat16, int64})
      for (const int dim : {0, 1}) {
        const std::int64_t k = 1 + generator.below(std::min<std::int64_t>(size, 6));
        Shape shape{3, 3}, taken{3, 3};
        shape[dim] = size;
        taken[dim] = k;
        Tensor values = randint(9, shape, {dtype}, generator);
        if (is_floating(dtype)) values.select(dim, size / 2).fill_(NAN);
        const Tensor x = random_layout(values, generator),
                     out = random_layout(full(taken, -1, {int64}), generator);
        table().topk(x, dim, out);
        for (int other = 0; other < 3; ++other) {
          const auto row = to_vector(x.select(1 - dim, other)),
                     got = to_vector(out.select(1 - dim, other));
          std::vector<double> order(row.size());
          std::iota(order.begin(), order.end(), 0);
          const auto key = [&](double i) {
            const double v = row[static_cast<std::size_t>(i)];
            return std::isnan(v) ? INFINITY : v;
          };
          std::stable_sort(order.begin(), order.end(),
                           [&](double i, double j) { return key(i) > key(j); });
          order.resize(static_cast<std::size_t>(k));
          EXPECT_EQ(got, order) << size << " " << to_string(dtype) << " dim " << dim;
        }
      }
}

TEST(ReduceKernels, ResultsDoNotDependOnTheThreadCount) {
  Generator generator(205);
  const Tensor x = randn({7, 40, 50, 30}, {}, generator);
  const int before = num_threads();
  for (const Shape& kept :
       {Shape{1, 1, 1, 1}, Shape{1, 40, 1, 1}, Shape{7, 40, 50, 1}, Shape{1, 40, 50, 30}}) {
    const auto compute = [&](int threads) {
      set_num_threads(threads);
      const Tensor out = empty(kept).fill_(NAN);
      table().reduce(Reduction::sum, x, out);
      return to_vector(out);
    };
    const auto one = compute(1);
    EXPECT_EQ(one, compute(2));
    EXPECT_EQ(one, compute(5));
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace tutti::reduce_test
