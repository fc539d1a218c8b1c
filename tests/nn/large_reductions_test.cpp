// Sums over large planes, batches and tables against float64. A sum of n numbers one by one in
// float32 errs by up to n / 2^24 of its size: by 1e-4 here in practice, and by more than 1e-2 where
// it stops growing. All sums are within `error_limit`: 256 numbers in float32, or blocks of them,
// are within 256 / 2^24 = 1.5e-5 in the worst case and within 2e-6 in practice.
#include <tutti/autograd/functions.h>
#include <tutti/autograd/indexing.h>
#include <tutti/autograd/matmul.h>
#include <tutti/core/create.h>
#include <tutti/nn/functional/conv.h>
#include <tutti/nn/functional/group_norm.h>
#include <tutti/nn/functional/layer_norm.h>
#include <tutti/nn/functional/linear.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/functional/pooling.h>
#include <tutti/optim/clip.h>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace tutti {
namespace {

constexpr double error_limit = 2e-6;
constexpr std::int64_t side = 2048, count = side * side;

// Returns the largest difference by the largest number.
double relative_difference(const Tensor& a, const Tensor& b) {
  const Tensor exact = b.to(float64);
  return max(abs(a.to(float64) - exact)).item<double>() / max(abs(exact)).item<double>();
}

// The results of a computation: its output, or gradients.
using Results = std::vector<Tensor>;
using Computation = std::function<Results(const Tensor&)>;

// Compares a computation in float32 with the same one in float64, for inputs of [0, 1) and for ones
// whose sums no float32 counter reaches.
void expect_exact(const char* name, const Computation& compute, const Tensor& x,
                  double largest = error_limit) {
  const Results got = compute(x), exact = compute(x.to(float64));
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_LT(relative_difference(got[i], exact[i]), largest) << name << ", result " << i;
}

Tensor uniform(const Shape& shape) {
  Generator generator(29);
  return rand(shape, {}, generator);
}

Tensor parameter(const Tensor& like, const Shape& shape) {
  return ones(shape, {like.dtype()}).requires_grad_();
}

TEST(LargeReductions, AverageOfAPlane) {
  const Tensor plane = uniform({1, 1, 4096, 4096});
  for (const std::int64_t output : {1, 2, 3, 7})
    expect_exact(
        "adaptive_avg_pool",
        [=](const Tensor& x) { return Results{nn::adaptive_avg_pool(x, {output})}; }, plane);
  for (const std::int64_t kernel : {17, 300, 4096})
    expect_exact(
        "avg_pool",
        [=](const Tensor& x) {
          return Results{nn::avg_pool(x, {.kernel = {kernel}, .padding = {kernel / 8}})};
        },
        plane);
  expect_exact(
      "rows",
      [](const Tensor& x) {
        return Results{nn::avg_pool(x, {.kernel = {1, 4096}})};
      },
      plane);
  // 25 million ones are more than the 2^24 up to which float32 counts.
  EXPECT_EQ(nn::adaptive_avg_pool(ones({1, 1, 5000, 5000}), {1}).item<double>(), 1);
  EXPECT_EQ(nn::avg_pool(ones({1, 1, 5000, 5000}), {.kernel = {5000}}).item<double>(), 1);
  const Tensor narrow = uniform({1, 32, 512, 512}).to(bfloat16);
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    EXPECT_LT(relative_difference(nn::adaptive_avg_pool(narrow.contiguous(format), {1}),
                                  mean(narrow.to(float64), {2, 3}, true)),
              1.0 / 256);
}

TEST(LargeReductions, KeepTheLayoutAndTheGradient) {
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    for (const std::int64_t output : {1, 3}) {
      const Tensor x = uniform({2, 3, 600, 300}).contiguous(format).requires_grad_();
      const Tensor y = nn::adaptive_avg_pool(x, {output});
      EXPECT_EQ(y.memory_format(), format);
      y.backward(ones(y.shape()));
      EXPECT_EQ(x.grad().strides(), x.strides());
      const double each = static_cast<double>(output * output) / (600 * 300);
      EXPECT_LT(relative_difference(x.grad(), full(x.shape(), each)), error_limit);
    }
}

// Every element of the middle lies in 40 x 40 windows.
TEST(LargeReductions, GradientOfOverlappingWindows) {
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor plane = uniform({1, 2, 160, 160}).contiguous(format);
    for (const Shape& kernel : {Shape{40, 40}, Shape{1, 40}})
      expect_exact(
          "avg_pool",
          [=](const Tensor& x) {
            const Tensor in = x.detach().requires_grad_();
            const Tensor y = nn::avg_pool(in, {.kernel = kernel, .stride = {1}});
            y.backward(x.slice(2, 0, y.size(2)).slice(3, 0, y.size(3)));
            return Results{y, in.grad()};
          },
          plane);
    // One element is the maximum of all windows.
    expect_exact(
        "max_pool",
        [=](const Tensor& x) {
          const Tensor in = zeros_like(x);
          in.select(3, 80).select(2, 80).fill_(1);
          in.requires_grad_();
          const Tensor y = nn::max_pool(in, {.kernel = {80}, .stride = {1}});
          y.backward(x.slice(2, 0, y.size(2)).slice(3, 0, y.size(3)));
          return Results{in.grad()};
        },
        plane);
  }
}

TEST(LargeReductions, GradientsOfTables) {
  const Tensor x = uniform({count});
  const auto zeros_of = [](std::int64_t n) { return zeros({n}, {int64}); };
  expect_exact(
      "gather",
      [&](const Tensor& g) {
        const Tensor in = parameter(g, {count});
        gather(in, 0, zeros_of(count)).backward(g);
        return Results{in.grad()};
      },
      x);
  expect_exact(
      "index_select",
      [&](const Tensor& g) {
        const Tensor in = parameter(g, {2, 3});
        index_select(in, 1, zeros_of(count / 2)).backward(g.reshape({2, count / 2}));
        return Results{in.grad()};
      },
      x);
}

TEST(LargeReductions, GradientsOfBiases) {
  const Tensor plane = uniform({1, 1, side, side});
  expect_exact(
      "convolution",
      [](const Tensor& x) {
        const Tensor weight = ones({1, 1, 1, 1}, {x.dtype()}), bias = parameter(x, {1});
        nn::convolution(x, weight, bias).backward(x);
        return Results{bias.grad()};
      },
      plane);
  expect_exact(
      "linear",
      [](const Tensor& x) {
        const Tensor weight = parameter(x, {8, 8}), bias = parameter(x, {8});
        const Tensor rows = x.reshape({count / 8, 8});
        nn::linear(rows, weight, bias).backward(rows);
        return Results{weight.grad(), bias.grad()};
      },
      plane);
}

TEST(LargeReductions, ProductsAndSums) {
  const Tensor x = uniform({count});
  expect_exact(
      "matmul",
      [](const Tensor& v) {
        return Results{matmul(v.reshape({8, count / 8}), v.reshape({count / 8, 8})),
                       matmul(v.slice(0, 0, 16384).reshape({1, 16384}),
                              v.slice(0, 0, 16384).reshape({16384, 1}))};
      },
      x);
  expect_exact(
      "reductions",
      [](const Tensor& v) {
        const Tensor rows = v.reshape({side, side}), columns = rows.transpose(0, 1);
        return Results{sum(v),
                       mean(v),
                       var(v),
                       std(v),
                       sum(rows, {0}),
                       sum(rows, {1}),
                       sum(columns, {0}),
                       var(columns, {1}),
                       nn::mse_loss(v, zeros_like(v))};
      },
      x);
  expect_exact(
      "broadcast gradient",
      [](const Tensor& v) {
        const Tensor factor = parameter(v, {1});
        (factor * v).backward(v);
        return Results{factor.grad()};
      },
      x);
}

TEST(LargeReductions, Normalisation) {
  const Tensor x = uniform({count});
  expect_exact(
      "layer_norm",
      [](const Tensor& v) {
        const Tensor in = v.detach().requires_grad_();
        const Tensor y = nn::layer_norm(in, {count});
        y.backward(square(v));
        return Results{y, in.grad()};
      },
      x);
  expect_exact(
      "group_norm",
      [](const Tensor& v) {
        const Tensor plane = v.reshape({1, 1, side, side}), weight = parameter(v, {1}),
                     bias = parameter(v, {1});
        nn::group_norm(plane, 1, weight, bias).backward(square(plane));
        return Results{weight.grad(), bias.grad()};
      },
      x);
}

TEST(LargeReductions, SoftmaxAndLosses) {
  const Tensor x = uniform({count});
  expect_exact(
      "log_softmax",
      [](const Tensor& v) {
        return Results{log_softmax(v, 0), softmax(v, 0)};
      },
      x);
  expect_exact(
      "cross_entropy",
      [](const Tensor& v) {
        const Tensor logits = v.reshape({count / 8, 8}).detach().requires_grad_();
        const Tensor loss =
            nn::cross_entropy(logits, zeros({count / 8}, {int64}), {.label_smoothing = 0.1});
        loss.backward();
        return Results{loss, logits.grad()};
      },
      x);
}

TEST(LargeReductions, NormsOfGradients) {
  const Tensor p = zeros({count});
  p.requires_grad_();
  p.set_grad(uniform({count}));
  const double exact = std::sqrt(sum(square(p.grad().to(float64))).item<double>());
  EXPECT_NEAR(optim::clip_grad_norm({p}, 1e9).item<double>() / exact, 1, 1e-12);
}

}  // namespace
}  // namespace tutti
