// Device memory, streams and copies, as the library uses them.
#include "../test_device.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/core/cuda/stream.h>

#include <gtest/gtest.h>

#include <thread>

namespace tutti {
namespace {

using testing::test_device;

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

TEST(Memory, LiveAndPeakAreCounted) {
  Allocator& memory = allocator(test_device());
  const auto before = memory.stats();
  {
    const Tensor a = empty({1000}, {float64, test_device()}), b = empty({500}, {float64, test_device()});
    EXPECT_EQ(memory.stats().live, before.live + 12000);
    EXPECT_GE(memory.stats().peak, before.live + 12000);
  }
  EXPECT_EQ(memory.stats().live, before.live);
}

TEST(Memory, OutOfMemoryNamesTheFigures) {
  try {
    empty({std::int64_t{1} << 42}, {uint8, test_device()});
    FAIL() << "4 TB were there";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("asked for 4398046511104 bytes"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("are live"), std::string::npos) << error.what();
  }
  EXPECT_EQ(to_vector(ones({3}, {float32, test_device()})), std::vector<double>(3, 1.0)) << "and work goes on";
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
}  // namespace tutti
