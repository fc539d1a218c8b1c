// Runs every family of kernels once on a few elements and compares with the CPU, so that run.sh can
// run this suite under compute-sanitizer in seconds. SmallKernels has only our own kernels,
// SmallModels also those of NVIDIA's libraries.
#include "../kernels/compare.h"
#include "../test_device.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/indexing.h>
#include <tutti/core/create.h>
#include <tutti/nn/batch_norm/layer.h>
#include <tutti/nn/functional/conv.h>
#include <tutti/nn/functional/layer_norm.h>
#include <tutti/nn/functional/linear.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/functional/pooling.h>
#include <tutti/optim/adam.h>
#include <tutti/optim/clip.h>
#include <tutti/optim/lars.h>
#include <tutti/optim/sgd.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti::small_test {
namespace {

using test::test_device;
using Results = std::vector<Tensor>;

// Expects that compute() returns the same on the device and on the CPU, up to a relative error.
template <class Compute>
void expect_the_cpus(const Compute& compute, double tolerance) {
  const Results there = compute(test_device()), here = compute(Device::cpu());
  ASSERT_EQ(there.size(), here.size());
  for (std::size_t k = 0; k < here.size(); ++k)
    EXPECT_LE(test::relative_error(there[k], here[k]), tolerance) << "result " << k;
}

Tensor random(Generator& generator, const Shape& shape, DType dtype, Device device) {
  return randn(shape, {float64}, generator).to(dtype).to(device);
}

void expect_the_cpus_normalisation(const Shape& shape, DType dtype, MemoryFormat format) {
  expect_the_cpus(
      [&](Device device) {
        Generator generator(1);
        const auto make = [&] {
          return random(generator, shape, dtype, device).contiguous(format).requires_grad_();
        };
        const Tensor x = make(), residual = make(), dy = make().detach();
        const Tensor weights = random(generator, {shape[0]}, float32, device) * 0.1 + 0.5;
        nn::BatchNorm layer({.channels = shape[1], .device = device});
        const Tensor y = layer.forward(x, {.residual = residual, .relu = true}),
                     z = layer.forward(layer(y), {.position_weights = weights});
        z.backward(dy);
        Results results{y.detach(), z.detach(), x.grad(), residual.grad()};
        for (const Tensor& p : layer.parameters()) results.push_back(p.grad());
        for (const auto& [name, buffer] : layer.named_buffers()) results.push_back(buffer);
        return results;
      },
      dtype == bfloat16 ? 3e-2 : 1e-4);
}

TEST(SmallKernels, Normalisation) {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    for (const std::int64_t channels : {8, 5}) {
      for (const DType dtype : {float32, bfloat16})
        expect_the_cpus_normalisation({3, channels, 5, 7}, dtype, format);
      // Here a channel has several blocks: the last block merges their sums.
      expect_the_cpus_normalisation({8, channels, 40, 40}, float32, format);
    }
}

TEST(SmallKernels, EverythingElse) {
  expect_the_cpus(
      [](Device device) {
        Generator generator(2);
        const Tensor x = random(generator, {3, 4, 6, 6}, float32, device).requires_grad_();
        const Tensor table = random(generator, {11, 16}, float32, device).requires_grad_();
        const Tensor indices = randint(11, {3}, {.dtype = int64}, generator).to(device),
                     labels = randint(16, {3}, {.dtype = int64}, generator).to(device);
        const Tensor pooled =
            nn::max_pool(x, {.kernel = {2, 2}, .stride = {2, 2}, .padding = {0, 0}});
        const Tensor mean = nn::adaptive_avg_pool(pooled, {2, 2}).reshape({3, 16});
        const Tensor hidden = nn::layer_norm(mean + index_select(table, 0, indices), {16});
        const Tensor loss = nn::cross_entropy(hidden, labels);
        loss.backward();
        const std::vector<Tensor> parameters{x, table};
        Results results{loss.detach(), x.grad(), table.grad(), argmax(hidden.detach(), 1),
                        optim::clip_grad_norm(parameters, 0.1)};
        optim::SGD(parameters, {.lr = 0.1, .momentum = 0.9}).step();
        optim::AdamW(parameters, {.lr = 0.1}).step();
        optim::LARS(parameters, {.lr = 0.1}).step();
        results.insert(results.end(), {x.detach(), table.detach()});
        return results;
      },
      1e-4);
}

// The last block of a tensor counts the step.
TEST(SmallKernels, StepsOfTensorsThatSeveralBlocksUpdate) {
  expect_the_cpus(
      [](Device device) {
        Generator generator(3);
        const Tensor wide = random(generator, {40'000}, float32, device).requires_grad_();
        wide.set_grad(random(generator, {40'000}, float32, device));
        optim::AdamW adam({wide}, {.lr = 0.1});
        for (int step = 0; step < 2; ++step) adam.step();
        return Results{wide.detach(), optim::clip_grad_norm({wide}, 0.1)};
      },
      1e-4);
}

// There are more rows than blocks on the emulator's device.
TEST(SmallKernels, RowsThatABlockShares) {
  expect_the_cpus(
      [](Device device) {
        Generator generator(6);
        const Tensor x = random(generator, {98, 2304}, float32, device).requires_grad_();
        const Tensor y = log_softmax(nn::layer_norm(x, {2304}), 1);
        y.backward(random(generator, {98, 2304}, float32, device));
        return Results{y.detach(), x.grad()};
      },
      1e-4);
}

TEST(SmallKernels, OperationsOnIndices) {
  expect_the_cpus(
      [](Device device) {
        Generator generator(4);
        const Tensor x = random(generator, {3, 7, 5}, float32, device).requires_grad_();
        const Tensor few = randint(7, {9}, {.dtype = int64}, generator).to(device),
                     many = randint(7, {2, 40, 5}, {.dtype = int64}, generator).to(device);
        const auto [values, indices] = topk(x, 3, 1);
        const Tensor bounded = clamp(flip(pad(x, {1, -2}, 0.5), {0, 2}), -1, 1),
                     shared = var(x, {1}) + tutti::std(x, {1}, {.correction = 0}) +
                              values.select(1, 1);
        const Tensor total = sum(square(gather(x, 1, many))) +
                             sum(square(index_select(x, 1, few))) + sum(square(bounded)) +
                             sum(masked_fill(shared, gt(shared.detach(), 2), 0));
        total.backward();
        return Results{total.detach(),  x.grad(),           values.detach(), indices,
                       one_hot(few, 7), argmax(x.detach()), sign(few - 3)};
      },
      1e-5);
}

TEST(SmallKernels, Losses) {
  expect_the_cpus(
      [](Device device) {
        Generator generator(5);
        const Tensor x = random(generator, {6, 4}, float32, device).requires_grad_(),
                     target = sigmoid(random(generator, {6, 4}, float32, device)).requires_grad_(),
                     weight = exp(random(generator, {4}, float32, device));
        const Tensor labels = tensor({0, 3, -100, 1, 2, 3}, {.dtype = int64}).to(device);
        const Tensor total =
            nn::cross_entropy(x, target, {.label_smoothing = 0.1, .weight = weight}) +
            nn::cross_entropy(x, labels, {.label_smoothing = 0.1, .weight = weight}) +
            nn::binary_cross_entropy_with_logits(x, target, {.pos_weight = weight});
        total.backward();
        return Results{total.detach(), x.grad(), target.grad()};
      },
      1e-5);
}

// The host does not read indices, so one that is out of range is no error: its loss is NaN.
TEST(SmallKernels, AnIndexOutOfRangeGivesNan) {
  if (test_device().is_cpu()) GTEST_SKIP() << "the CPU throws, which tests/nn covers";
  const Tensor x = zeros({2, 3}, {.device = test_device()});
  const Tensor bad = tensor({1, 3}, {.dtype = int64}).to(test_device());
  const Tensor losses = nn::cross_entropy(x, bad, {.reduction = nn::LossReduction::none});
  EXPECT_FALSE(std::isnan(to_vector(losses)[0]));
  EXPECT_TRUE(std::isnan(to_vector(losses)[1]));
  EXPECT_EQ(to_vector(one_hot(bad, 3)), (std::vector<double>{0, 1, 0, 0, 0, 0}));
}

// 70,000 is infinite in float16. The CPU has no float16 kernels, so there is nothing to compare
// with.
TEST(SmallModels, SumsOf16BitNumbersAreNotRoundedBeforeTheirTime) {
  const TensorOptions half{.dtype = float16, .device = test_device()};
  const Tensor x = ones({70000}, half),
               bias = zeros({1}, {.device = test_device()}).requires_grad_();
  EXPECT_EQ(mean(x).item<double>(), 1);
  const Tensor weight = ones({1, 1}, {.device = test_device()});
  nn::linear(x.reshape({70000, 1}), weight, bias).backward(ones({70000, 1}, half));
  EXPECT_EQ(bias.grad().item<double>(), 70000);
}

TEST(SmallModels, ConvolutionAndLinear) {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    expect_the_cpus(
        [&](Device device) {
          Generator generator(3);
          const Tensor x =
              random(generator, {2, 8, 6, 6}, float32, device).contiguous(format).requires_grad_();
          const Tensor w =
              random(generator, {8, 8, 3, 3}, float32, device).contiguous(format).requires_grad_();
          const Tensor dense = random(generator, {5, 8}, float32, device).requires_grad_();
          const Tensor bias = random(generator, {5}, float32, device).requires_grad_();
          const Tensor y = nn::convolution(x, w, {}, {.stride = {1, 1}, .padding = {1, 1}});
          const Tensor z =
              nn::linear(nn::adaptive_avg_pool(y, {1, 1}).reshape({2, 8}), dense, bias);
          z.backward(random(generator, {2, 5}, float32, device));
          return Results{y.detach(), z.detach(), x.grad(), w.grad(), dense.grad(), bias.grad()};
        },
        1e-4);
}

}  // namespace
}  // namespace tutti::small_test
