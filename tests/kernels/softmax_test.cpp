// Softmax and cross-entropy kernels against their definitions in float64, over layouts, dtypes and
// numbers of classes.

#include "random_layout.h"
#include "tables.h"

#include <gtest/gtest.h>

namespace tutti::softmax_test {
namespace {

using test::finite_relative_error;
using test::random_layout;

const kernels::Softmax& table() { return test::softmax(); }

double tolerance(DType dtype) { return dtype == float64 ? 1e-13 : dtype == float32 ? 1e-6 : 5e-3; }

struct Slice {  // the definition of softmax for `n` values
  std::vector<double> probability, log;
  explicit Slice(const double* x, std::size_t n) {
    double largest = -INFINITY, total = 0;
    for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, x[i]);
    for (std::size_t i = 0; i < n; ++i) total += std::exp(x[i] - largest);
    for (std::size_t i = 0; i < n; ++i) {
      log.push_back(x[i] - largest - std::log(total));
      probability.push_back(std::exp(log.back()));
    }
  }
};

TEST(SoftmaxKernels, MatchTheDefinitionInEveryLayout) {
  Generator generator(301);
  for (const std::int64_t classes : {1, 2, 10, 33, 1100, 2100})
    for (const DType dtype : test::trained_dtypes())
      for (int dim = 0; dim < 3; ++dim)
        for (const bool log : {false, true}) {
          Shape shape{3, 2, 4};
          shape[dim] = classes;
          const auto make = [&] {
            return random_layout(randn(shape, {float64}, generator).mul_(4).to(dtype), generator);
          };
          const Tensor x = make(), y = random_layout(zeros(shape, {dtype}), generator).fill_(NAN);
          table().forward(x, dim, log, y);
          // The class dimension goes last, so that every slice is a contiguous part of a vector.
          const auto in = to_vector(x.transpose(dim, 2)), out = to_vector(y.transpose(dim, 2));
          const auto n = static_cast<std::size_t>(classes);
          std::vector<double> expected;
          for (std::size_t i = 0; i < in.size(); i += n) {
            const Slice slice(&in[i], n);
            const auto& values = log ? slice.log : slice.probability;
            expected.insert(expected.end(), values.begin(), values.end());
          }
          EXPECT_LE(finite_relative_error(out, expected), tolerance(dtype))
              << classes << " " << to_string(dtype) << " " << dim;
          // Backward from the rounded output that the kernel itself would save.
          const Tensor g = make(), dx = random_layout(zeros(shape, {dtype}), generator).fill_(NAN);
          table().backward(g, y, dim, log, dx);
          const auto dy = to_vector(g.transpose(dim, 2));
          for (std::size_t i = 0; i < in.size(); i += n) {
            double total = 0;
            for (std::size_t j = i; j < i + n; ++j) total += log ? dy[j] : dy[j] * out[j];
            for (std::size_t j = i; j < i + n; ++j)
              expected[j] = log ? dy[j] - std::exp(out[j]) * total : out[j] * (dy[j] - total);
          }
          EXPECT_LE(finite_relative_error(to_vector(dx.transpose(dim, 2)), expected),
                    tolerance(dtype));
        }
}

TEST(CrossEntropyKernels, MatchTheDefinition) {
  Generator generator(302);
  for (const std::int64_t classes : {1, 10, 21, 1500, 2100})
    for (const DType dtype : test::trained_dtypes())
      for (const double smoothing : {0.0, 0.1}) {
        const Shape shape{3, classes, 9}, positions{3, 9};
        const DType wide = accumulate_dtype(dtype);
        // 21 classes side by side are read and written in squares.
        const auto layout_of = [&](const Tensor& t) {
          if (classes != 21) return random_layout(t, generator);
          return t.rank() == 3 ? t.transpose(1, 2).contiguous().transpose(1, 2) : t;
        };
        const Tensor x = layout_of(randn(shape, {float64}, generator).mul_(4).to(dtype));
        const Tensor targets = layout_of(randint(classes, positions, {int64}, generator));
        targets.slice(1, 0, 9, 2).select(0, 1).fill_(-100);
        const auto blank = [&](const Shape& s, DType d) {
          return layout_of(zeros(s, {d})).fill_(NAN);
        };
        const Tensor losses = blank(positions, wide), normalizers = blank(positions, wide),
                     dx = blank(shape, dtype);
        const kernels::CrossEntropyRule rule{.label_smoothing = smoothing, .ignore_index = -100};
        table().cross_entropy(x, targets, rule, losses, normalizers);
        const Tensor g = randn(positions, {wide}, generator);
        table().cross_entropy_grad(g, x, targets, rule, normalizers, dx);
        const auto in = to_vector(x.transpose(1, 2)), t = to_vector(targets), scale = to_vector(g);
        const auto n = static_cast<std::size_t>(classes);
        std::vector<double> loss, gradient;
        for (std::size_t i = 0; i < t.size(); ++i) {
          const Slice slice(&in[i * n], n);
          loss.push_back(0);
          for (std::size_t c = 0; c < n; ++c) {
            const double wanted = smoothing / static_cast<double>(n) +
                                  (static_cast<double>(c) == t[i] ? 1 - smoothing : 0);
            if (t[i] >= 0) loss.back() -= wanted * slice.log[c];
            gradient.push_back(t[i] >= 0 ? scale[i] * (slice.probability[c] - wanted) : 0);
          }
        }
        // Losses and gradients are exact up to the input's rounding, which the reference shares.
        EXPECT_LE(finite_relative_error(to_vector(losses), loss), wide == float64 ? 1e-13 : 1e-6)
            << classes;
        EXPECT_LE(finite_relative_error(to_vector(dx.transpose(1, 2)), gradient), tolerance(dtype))
            << classes;
      }
}

TEST(CrossEntropyKernels, LargeLogitsKeepTheirDifferences) {
  const Tensor x = tensor({30000, 30001, 29999}, {1, 3}), t = tensor({0}, {int64});
  const Tensor loss = empty({1}), normalizer = empty({1}), dx = empty({1, 3});
  table().cross_entropy(x, t, {}, loss, normalizer);
  table().cross_entropy_grad(ones({1}), x, t, {}, normalizer, dx);
  const double small[] = {0, 1, -1};
  const Slice slice(small, 3);
  EXPECT_NEAR(loss.item<double>(), -slice.log[0], 1e-6);
  EXPECT_LE(finite_relative_error(to_vector(dx), {slice.probability[0] - 1, slice.probability[1],
                                                  slice.probability[2]}),
            1e-6);
}

TEST(CrossEntropyKernels, MaskedClassesAndBadTargets) {
  const Tensor x = tensor({1, -INFINITY, 2}, {1, 3}), loss = full({1}, 7),
               normalizer = full({1}, 7);
  table().cross_entropy(x, tensor({0}, {int64}), {}, loss, normalizer);
  EXPECT_NEAR(loss.item<double>(), std::log(1 + std::exp(1.0)), 1e-6);
  loss.fill_(7);
  for (const double bad : {-1.0, 3.0})
    if (test::test_device().is_cpu()) {
      EXPECT_THROW(table().cross_entropy(x, tensor({bad}, {int64}), {}, loss, normalizer),
                   ValueError);
      EXPECT_EQ(loss.item<double>(), 7);
    } else {  // a GPU cannot throw: the loss and its gradient are NaN
      const Tensor dx = zeros({1, 3});
      table().cross_entropy(x, tensor({bad}, {int64}), {}, loss.fill_(7), normalizer);
      table().cross_entropy_grad(ones({1}), x, tensor({bad}, {int64}), {}, normalizer, dx);
      EXPECT_TRUE(std::isnan(loss.item<double>()));
      for (const double v : to_vector(dx)) EXPECT_TRUE(std::isnan(v));
    }
}

}  // namespace
}  // namespace tutti::softmax_test
