// Tests tensors in device memory, the allocator's statistics, streams, and copies between devices.
#include "../test_device.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/cuda/pinned_memory.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/core/cuda/stream.h>
#include <tutti/nn/batch_norm/layer.h>

#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace tutti::memory_test {
namespace {

using test::test_device;

TEST(Memory, TensorsGoThereAndBack) {
  for (const DType dtype : {float32, float64, bfloat16, float16, int64, uint8, boolean})
    for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{7}, Shape{3, 5, 2}}) {
      const Tensor x = randint(2, shape, {dtype}), there = x.to(test_device());
      EXPECT_EQ(there.device(), test_device());
      EXPECT_EQ(there.dtype(), dtype);
      EXPECT_EQ(to_vector(there), to_vector(x)) << to_string(dtype) << " " << to_string(shape);
    }
}

TEST(Memory, LargeCopiesGoPieceByPiece) {
  const std::int64_t n = (20 << 20) / 4 + 3;
  const Tensor x = rand({n});
  EXPECT_EQ(to_vector(x.to(test_device()).to(Device::cpu())), to_vector(x));
}

TEST(Memory, CopiesFromPinnedMemoryNeedNoWait) {
  const std::int64_t n = (20 << 20) / 4 + 3;
  const Tensor x = rand({n});
  const std::int64_t waits = cuda::synchronizations();
  Tensor there, tail;
  {
    const Tensor pinned(cuda::pinned_storage(static_cast<std::size_t>(n) * 4, 0), {n}, {1}, 0,
                        float32);
    pinned.copy_(x);
    there = pinned.to(test_device());
    tail = pinned.slice(0, n - 5, n).to(test_device());
  }
  // Released memory must not be handed out before the copies are done.
  const Tensor next(cuda::pinned_storage(static_cast<std::size_t>(n) * 4, 0), {n}, {1}, 0, float32);
  next.zero_();
  EXPECT_EQ(cuda::synchronizations(), waits);
  EXPECT_EQ(to_vector(there), to_vector(x));
  EXPECT_EQ(to_vector(tail), to_vector(x.slice(0, n - 5, n)));
  EXPECT_EQ(cuda::pinned_storage(0, 0)->bytes(), 0u);
}

// Copies one pinned tensor on two streams, waits for the second one only, and releases the tensor.
TEST(Memory, PinnedMemoryIsReusedOnlyWhenEveryStreamHasReadIt) {
  const std::int64_t n = 1 << 18;  // no other test has left blocks of this size in the pool
  const auto pin = [&] {
    return Tensor(cuda::pinned_storage(static_cast<std::size_t>(n) * 4, 0), {n}, {1}, 0, float32);
  };
  const cuda::Stream first = cuda::Stream::create(test_device().index()),
                     second = cuda::Stream::create(test_device().index());
  for (int i = 0; i < 60; ++i) {
    const Tensor x = rand({n});
    Tensor there;
    {
      const Tensor pinned = pin();
      pinned.copy_(x);
      {
        const cuda::StreamScope scope(first);
        there = pinned.to(test_device());
      }
      const cuda::StreamScope scope(second);
      const Tensor again = pinned.to(test_device());
      second.synchronize("test");
    }
    pin().fill_(-1);
    first.synchronize("test");
    ASSERT_EQ(to_vector(there), to_vector(x)) << i;
  }
}

TEST(Memory, LargePinnedMemoryTakesItsSizeAndNotTheNextPowerOfTwo) {
  const auto block = [](std::size_t mib) { return cuda::pinned_storage(mib << 20, 0)->data(); };
  const void* first = block(37);
  EXPECT_EQ(block(38), first);
  EXPECT_NE(block(39), first);
}

TEST(Memory, PinnedMemoryIsCopiedToSeveralDevices) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "there is one GPU only";
  const Tensor x = rand({10});
  const Tensor pinned(cuda::pinned_storage(40, 0), {10}, {1}, 0, float32);
  pinned.copy_(x);
  for (const int device : {0, 1, 0})
    EXPECT_EQ(to_vector(pinned.to(Device::cuda(device))), to_vector(x)) << device;
}

TEST(Memory, LiveAndPeakAreCounted) {
  Allocator& memory = allocator(test_device());
  const auto before = memory.stats();
  {
    const Tensor a = empty({1000}, {float64, test_device()}),
                 b = empty({500}, {float64, test_device()});
    EXPECT_EQ(memory.stats().live, before.live + 12000);
    EXPECT_GE(memory.stats().peak, before.live + 12000);
  }
  EXPECT_EQ(memory.stats().live, before.live);
}

TEST(Memory, StatisticsCountHowOftenTheyFindALargerPool) {
  Allocator& memory = allocator(test_device());
  memory.trim();
  const std::size_t before = memory.stats().system_allocations;
  const Tensor large = empty({8 << 20}, {float64, test_device()});
  EXPECT_EQ(memory.stats().system_allocations, before + 1);
  EXPECT_EQ(memory.stats().system_allocations, before + 1);
}

// Compares a layer with residual and ReLU with one that has a ReLU only, whose mask backward
// computes again from x.
TEST(Memory, AfterAResidualALayerKeepsAMaskAndNotItsOutput) {
  for (const DType dtype : {bfloat16, float16, float32, float64})
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const auto make = [&] {
        return randn({4, 16, 6, 8}).to(dtype).to(test_device()).contiguous(format).requires_grad_();
      };
      const Tensor x = make(), residual = make();
      nn::BatchNorm layer({.channels = 16, .device = test_device()});
      const auto kept = [&](const std::function<Tensor()>& forward) {
        const auto live = [] {
          return static_cast<std::int64_t>(allocator(test_device()).stats().live);
        };
        const std::int64_t before = live();
        const Tensor total = sum(forward());  // keeps the autograd graph, not the output
        return live() - before;
      };
      kept([&] {
        return layer.forward(x, {.residual = residual, .relu = true});
      });  // the first call also allocates memory that the device keeps
      const std::int64_t plain = kept([&] { return layer.forward(x, {.relu = true}); });
      const auto size = static_cast<std::int64_t>(size_of(dtype));
      EXPECT_EQ(
          kept([&] { return layer.forward(x, {.residual = residual, .relu = true}); }) - plain,
          x.numel() * size / 16);
      const NoGrad no_grad;
      EXPECT_EQ(kept([&] { return layer.forward(x, {.residual = residual, .relu = true}); }), size)
          << "the sum is all that is left";
    }
}

TEST(Memory, OutOfMemoryNamesTheFigures) {
  try {
    empty({std::int64_t{1} << 42}, {uint8, test_device()});
    FAIL() << "4 TB were there";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("asked for 4398046511104 bytes"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("are live"), std::string::npos) << error.what();
  }
  EXPECT_EQ(to_vector(ones({3}, {float32, test_device()})), std::vector<double>(3, 1.0))
      << "and work goes on";
}

TEST(Memory, CopiesToTheHostAreTheOnlyWaits) {
  const Tensor host = rand({100});
  const std::int64_t before = cuda::synchronizations();
  const Tensor there = host.to(test_device()), zero = zeros({10}, {float32, test_device()});
  EXPECT_EQ(cuda::synchronizations(), before);
  EXPECT_EQ(to_vector(there), to_vector(host));
  EXPECT_GT(cuda::synchronizations(), before);
}

TEST(Streams, AThreadWorksOnTheStreamThatItChose) {
  const cuda::Stream side = cuda::Stream::create(test_device().index());
  const Tensor host = rand({1000});
  Tensor there;
  {
    const cuda::StreamScope scope(side);
    EXPECT_TRUE(cuda::current_stream(test_device().index()) == side);
    there = host.to(test_device());
  }
  EXPECT_FALSE(cuda::current_stream(test_device().index()) == side);
  cuda::current_stream(test_device().index()).wait(side);
  EXPECT_EQ(to_vector(there), to_vector(host));
}

TEST(Streams, EventsPassWhenTheirStreamGotThere) {
  const cuda::Stream side = cuda::Stream::create(test_device().index());
  cuda::Event event;
  EXPECT_TRUE(event.passed()) << "not recorded yet";
  event.record(side);
  event.synchronize("test");
  EXPECT_TRUE(event.passed());
}

TEST(Devices, AnIndexThatIsNotThereIsNamed) {
  EXPECT_THROW(empty({1}, {float32, Device::cuda(cuda::device_count())}), DeviceError);
}

TEST(Devices, TensorsGoFromOneToAnother) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "there is one GPU only";
  const Tensor x = rand({1000}), first = x.to(Device::cuda(0)), second = first.to(Device::cuda(1));
  EXPECT_EQ(second.device(), Device::cuda(1));
  EXPECT_EQ(to_vector(second), to_vector(x));
}

}  // namespace
}  // namespace tutti::memory_test
