// Counts and delays the allocations of page-locked memory, which the emulator's CUDA runtime shows.
// Runs in the emulator only.
#include "emulator/streams.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/pinned_memory.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/core/cuda/stream.h>
#include <tutti/data/loader.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace tutti {
namespace {

using namespace std::chrono_literals;

// Calls an action at each allocation while it exists.
struct OnHostAlloc {
  explicit OnHostAlloc(std::function<void(std::size_t)> action) {
    emulator::on_host_alloc() = std::move(action);
  }
  ~OnHostAlloc() { emulator::on_host_alloc() = nullptr; }
};

// 154 MB are 256 images of 224 x 224 in float32. Four such batches are more than the pool keeps of
// small blocks.
TEST(PinnedPool, FourBatchesOfAnySizeAreUnderWayBeforeOneWaits) {
  const std::size_t bytes = std::size_t{256} * 3 * 224 * 224 * 4;
  int allocated = 0;
  const OnHostAlloc count([&](std::size_t) { ++allocated; });
  const cuda::Stream stream = cuda::Stream::create(0);
  const cuda::StreamScope scope(stream);
  const Tensor there = empty({1}, {.device = Device::cuda(0)});
  const auto load_batch = [&] {
    const auto batch = cuda::pinned_storage(bytes, 0);
    EXPECT_TRUE(cuda::copy_from_pinned(there.raw(), batch->data(), 4, stream));
  };
  const auto blocked = emulator::make_signal();
  emulator::wait(emulator::stream_of(stream.get()), blocked);
  const std::int64_t waits = cuda::synchronizations();
  for (int batch = 1; batch <= 4; ++batch) load_batch();
  EXPECT_EQ(allocated, 4);
  EXPECT_EQ(cuda::synchronizations(), waits);
  const std::jthread later([&] {
    std::this_thread::sleep_for(50ms);
    emulator::raise(blocked);
  });
  load_batch();
  EXPECT_EQ(allocated, 4) << "the fifth batch gets a block when the device has read it";
  EXPECT_EQ(cuda::synchronizations(), waits + 1);
  stream.synchronize("test");
}

// Images whose number of reads is counted.
struct CountedImages final : data::Dataset {
  std::int64_t size() const override { return 8; }
  data::Sample get(std::int64_t) const override {
    ++reads;
    return {.image = image};
  }
  Tensor image = zeros({3401, 3401, 3}, {uint8});
  mutable std::atomic<int> reads = 0;
};

TEST(PinnedPool, AWorkerThatAllocatesKeepsNoOtherFromLoading) {
  const auto images = std::make_shared<CountedImages>();
  std::atomic<int> large = 0;
  std::atomic<bool> others_went_on = false;
  const OnHostAlloc delay([&](std::size_t bytes) {
    if (bytes < (32 << 20) || large++ > 0) return;
    const auto end = std::chrono::steady_clock::now() + 60s;
    while (images->reads < 4 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(1ms);
    others_went_on = images->reads >= 4;
  });
  data::DataLoader loader(images, {.sampler = {.batch_size = 1},
                                   .workers = 2,
                                   .prefetch = 4,
                                   .pin_memory_for = Device::cuda(0)});
  while (loader.next()) {}
  EXPECT_TRUE(others_went_on) << "an allocation under the loader's lock";
}

}  // namespace
}  // namespace tutti
