// Tests of nn::pack_weights: packed models compute the same bits, and see every change of a weight
// that the library makes.
#include "kernels/compare.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/nn/conv.h>
#include <tutti/nn/conv_transpose.h>
#include <tutti/nn/functional/conv.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/nn/pack_weights.h>
#include <tutti/optim/sgd.h>

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

namespace tutti {
namespace {

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.contiguous(), y = b.contiguous();
  return x.shape() == y.shape() &&
         std::memcmp(x.raw(), y.raw(), static_cast<std::size_t>(x.numel()) * size_of(x.dtype())) ==
             0;
}

// The convolution with an unpacked copy of the layer's weight.
template <class Layer>
Tensor unpacked(const Layer& layer, const Tensor& x) {
  Layer other(layer.options());
  const NoGrad no_grad;
  other.weight.copy_(layer.weight);
  other.bias.copy_(layer.bias);
  return other(x);
}

class PackedConvolution : public testing::Test {
 protected:
  void SetUp() override { nn::pack_weights(layer_); }

  NoGrad no_grad_;
  nn::Conv2d layer_{{.in = 16, .out = 32, .kernel = 3, .padding = 1}};
  Tensor x_ = randn({2, 16, 9, 7}).contiguous(MemoryFormat::channels_last);
};

TEST_F(PackedConvolution, ComputesTheSameBits) {
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(same_bits(layer_(x_), unpacked(layer_, x_)));
  for (const Shape& shape : {Shape{1, 16, 9, 7}, Shape{5, 16, 4, 4}, Shape{2, 16, 9, 7}}) {
    const Tensor x = randn(shape).contiguous(MemoryFormat::channels_last);
    EXPECT_TRUE(same_bits(layer_(x), unpacked(layer_, x)));
  }
}

TEST_F(PackedConvolution, FollowsBfloat16Activations) {
  const Autocast autocast(bfloat16);
  for (int call = 0; call < 2; ++call) EXPECT_TRUE(same_bits(layer_(x_), unpacked(layer_, x_)));
}

TEST_F(PackedConvolution, SeesChangesInPlace) {
  const Tensor before = layer_(x_);
  layer_.weight.mul_(2);
  EXPECT_FALSE(same_bits(layer_(x_), before));
  EXPECT_TRUE(same_bits(layer_(x_), unpacked(layer_, x_)));
  layer_.load_state_dict(nn::Conv2d(layer_.options()).state_dict());
  EXPECT_TRUE(same_bits(layer_(x_), unpacked(layer_, x_)));
}

TEST_F(PackedConvolution, SeesTheStepsOfAnOptimizer) {
  optim::SGD sgd(layer_.parameters(), {.lr = 0.1});
  for (int step = 0; step < 2; ++step) {
    {
      const EnableGrad enable_grad;
      sum(layer_(x_)).backward();
    }
    sgd.step();
    EXPECT_TRUE(same_bits(layer_(x_), unpacked(layer_, x_)));
  }
}

TEST_F(PackedConvolution, ServesSeveralThreads) {
  const Tensor expected = unpacked(layer_, x_);
  std::vector<std::thread> threads;
  std::vector<int> equal(3);
  for (int& count : equal)
    threads.emplace_back([&] {
      const NoGrad no_grad;
      for (int call = 0; call < 20; ++call) count += same_bits(layer_(x_), expected);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(3, 20));
}

// Of these sizes Winograd's algorithm computes the forward, whose transformed kernels have 36
// numbers for 9.
TEST(PackWeights, KeepsTransformedKernels) {
  const NoGrad no_grad;
  nn::Conv2d layer({.in = 64, .out = 64, .kernel = 3, .padding = 1});
  const Tensor x = randn({2, 64, 28, 28}).contiguous(MemoryFormat::channels_last);
  nn::pack_weights(layer);
  const auto live = [] { return allocator(Device::cpu()).stats().live; };
  const std::size_t before = live();
  EXPECT_TRUE(same_bits(layer(x), unpacked(layer, x)));
#ifdef TUTTI_HAS_ONEDNN
  EXPECT_GE(live() - before, std::size_t{36 * 64 * 64} * sizeof(float));
#endif
  const std::size_t after_one = live();
  EXPECT_TRUE(same_bits(layer(x), unpacked(layer, x)));
  EXPECT_EQ(live(), after_one);
  layer.weight.mul_(2);
  EXPECT_TRUE(same_bits(layer(x), unpacked(layer, x)));
}

// A transposed convolution is the gradient of one, which has kernels of its own.
TEST(PackWeights, KeepsTheWeightOfATransposedConvolution) {
  const NoGrad no_grad;
  nn::ConvTranspose2d layer({.in = 64, .out = 32, .kernel = 2, .stride = 2});
  const Tensor x = randn({2, 64, 7, 9}).contiguous(MemoryFormat::channels_last);
  nn::pack_weights(layer);
  for (int call = 0; call < 2; ++call) EXPECT_TRUE(same_bits(layer(x), unpacked(layer, x)));
  layer.weight.mul_(2);
  EXPECT_TRUE(same_bits(layer(x), unpacked(layer, x)));
  const Autocast autocast(bfloat16);
  EXPECT_TRUE(same_bits(layer(x), unpacked(layer, x)));
}

// Another view of the memory of a packed weight is another weight. Winograd's algorithm computes
// the larger images.
TEST(PackWeights, OtherViewsOfAWeightHaveOtherCopies) {
  const NoGrad no_grad;
  nn::Conv2d square({.in = 64, .out = 64, .kernel = 3, .padding = 1}),
      wide({.in = 128, .out = 64, .kernel = 3, .padding = 1});
  nn::pack_weights(square), nn::pack_weights(wide);
  const auto expect = [](nn::Conv2d& layer, const Tensor& view, std::int64_t size) {
    const auto pictures = [=](std::int64_t channels) {
      return randn({2, channels, size, size}).contiguous(MemoryFormat::channels_last);
    };
    layer(pictures(layer.weight.size(1)));
    const Tensor x = pictures(view.size(1));
    const auto convolve = [&](const Tensor& w) {
      return nn::convolution(x, w, {}, {.padding = 1});
    };
    EXPECT_TRUE(same_bits(convolve(view), convolve(view.clone()))) << size;
  };
  for (const std::int64_t size : {9, 28}) {
    expect(square, square.weight.permute({1, 0, 2, 3}), size);
    expect(square, square.weight.reshape({64, 3, 3, 64}).permute({0, 3, 1, 2}), size);
    expect(wide, wide.weight.reshape({128, 64, 3, 3}), size);
  }
}

// Each number of threads cuts this layer's weight in another way.
TEST(PackWeights, KeepsAFewOfTheWaysToCutAWeight) {
  const NoGrad no_grad;
  nn::Conv2d layer({.in = 256, .out = 256, .kernel = 5, .padding = 2});
  const Tensor x = randn({1, 256, 7, 7}).contiguous(MemoryFormat::channels_last);
  nn::pack_weights(layer);
  const auto live = [] { return allocator(Device::cpu()).stats().live; };
  const std::size_t before = live(), bytes = 256 * 256 * 25 * sizeof(float);
  for (const int threads : {1, 2, 3, 4, 5, 6, 7, 8, 2}) {
    const test::Threads some(threads);
    for (int call = 0; call < 2; ++call)
      EXPECT_TRUE(same_bits(layer(x), unpacked(layer, x))) << threads;
    if (threads == 8) layer.weight.mul_(2);
    EXPECT_LE(live() - before, 4 * bytes + (1 << 20));
  }
}

TEST(PackWeights, KeepsOneCopyOfAWeight) {
  const NoGrad no_grad;
  nn::ResNet net({.depth = 18, .classes = 3});
  net.eval();
  net.to(MemoryFormat::channels_last);
  const Tensor x = randn({1, 3, 64, 64}).contiguous(MemoryFormat::channels_last);
  const Tensor expected = net(x);
  std::size_t weights = 0;
  for (const auto& [name, tensor] : net.state_dict())
    weights += static_cast<std::size_t>(tensor.numel()) * size_of(tensor.dtype());
  nn::pack_weights(net);
  const auto live = [] { return allocator(Device::cpu()).stats().live; };
  const std::size_t before = live();
  EXPECT_TRUE(same_bits(net(x), expected));
  const std::size_t after_one = live();
  EXPECT_LE(after_one - before, weights * 5 / 4);  // blocks are rounded up
#if defined(TUTTI_HAS_ONEDNN) && \
    defined(__x86_64__)  // elsewhere kernels may take weights as they are
  EXPECT_GE(after_one - before, weights / 2);
#endif
  for (int call = 0; call < 3; ++call) EXPECT_TRUE(same_bits(net(x), expected));
  EXPECT_EQ(live(), after_one);
}

}  // namespace
}  // namespace tutti
