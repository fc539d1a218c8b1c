// Tests of the memory of a training step: from the second equal step on, the allocator reuses its
// blocks and asks the system for none.
#include <tutti/core/create.h>
#include <tutti/nn/activation.h>
#include <tutti/nn/batch_norm/layer.h>
#include <tutti/nn/conv.h>
#include <tutti/nn/flatten.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/loss.h>
#include <tutti/nn/pooling.h>
#include <tutti/nn/sequential.h>
#include <tutti/optim/sgd.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using namespace nn;

// The activations of the larger images take blocks of 1 to 8 MiB.
TEST(Memory, RepeatedTrainingStepsAskTheSystemForNothing) {
  const auto check = [](MemoryFormat format, std::int64_t side) {
    Sequential net;
    net.append<Conv2d>({.in = 3, .out = 8, .kernel = 3, .padding = 1, .bias = false});
    net.append<BatchNorm2d>({.channels = 8});
    net.append<ReLU>();
    net.append<MaxPool2d>({.kernel = 2});
    net.append<Conv2d>({.in = 8, .out = 16, .kernel = 3, .stride = 2});
    net.append<AdaptiveAvgPool2d>();
    net.append<Flatten>();
    net.append<Linear>({.in = 16, .out = 5});
    optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
    const Tensor x = randn({4, 3, side, side}).contiguous(format),
                 targets = tensor({0, 1, 2, 4}, {.dtype = int64});
    const auto step = [&] {
      optimizer.zero_grad();
      cross_entropy(net(x), targets).backward();
      optimizer.step();
    };
    step();
    step();  // the first step for which the optimizer's momentum exists
    const MemoryStats before = allocator(Device::cpu()).stats();
    for (int i = 0; i < 5; ++i) step();
    const MemoryStats after = allocator(Device::cpu()).stats();
    EXPECT_GT(before.system_allocations, 0u);
    EXPECT_EQ(after.system_allocations, before.system_allocations) << to_string(format);
    EXPECT_EQ(after.live, before.live) << to_string(format);
  };
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
    for (const std::int64_t side : {16, 256}) check(format, side);
}

}  // namespace
}  // namespace tutti
