// Counts the contexts that threads make on devices, which the emulator's CUDA runtime remembers. A
// context takes half a gigabyte of its device in each process. Runs in the emulator only.
#include "captured_step.h"
#include "emulator/emulator.h"

#include <tutti/core/cuda/stream.h>
#include <tutti/data/loader.h>
#include <tutti/distributed/launch/launch.h>
#include <tutti/optim/adam.h>

#include <set>
#include <thread>

namespace tutti {
namespace {

// Returns the devices that each thread has used which is not among the first `before`.
std::vector<std::set<int>> contexts_after(std::size_t before) {
  std::vector<std::set<int>> all = emulator::contexts();
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(before));
  return all;
}

// Loads batches into pinned memory, trains, captures a step, and saves what there is.
TEST(Contexts, EachOfEightRanksUsesItsOwnDeviceAlone) {
  const std::size_t before = emulator::contexts().size();
  test::StepCase c;
  c.optimizer = [](const std::vector<Tensor>& parameters) {
    return std::make_unique<optim::AdamW>(parameters, optim::AdamW::Options{.lr = 0.01});
  };
  c.clip = 0.5;
  distributed::run_ranks(
      8,
      [&](const ProcessGroup& group) {
        const Device device = Device::cuda(group.local_rank());
        data::DataLoader loader(
            std::make_shared<data::SyntheticDataset>(
                data::SyntheticDataset::Options{.count = 8, .height = 4, .width = 4}),
            {.sampler = {.batch_size = 2}, .pin_memory_for = device});
        while (const auto batch = loader.next())
          EXPECT_EQ(to_vector(batch->images.to(device)), to_vector(batch->images));
        test::train_captured(c, device, group, 6);
      },
      std::chrono::seconds(60));
  std::map<int, int> threads;  // by device
  int watchers = 0;            // of the world, which looks after the lanes of all ranks
  for (const std::set<int>& devices : contexts_after(before)) {
    if (devices.size() == 8) ++watchers;
    else EXPECT_EQ(devices.size(), 1u);
    ++threads[*devices.begin()];
  }
  EXPECT_LE(watchers, 2) << "the watcher, and the thread that ends the lanes";
  EXPECT_EQ(threads.size(), 8u);
  for (const auto& [device, count] : threads)
    EXPECT_GE(count, 2) << "the rank and the worker use device " << device;
}

TEST(Contexts, OnlyAThreadWithAContextGoesBackToItsDevice) {
  const std::size_t before = emulator::contexts().size();
  const auto use = [](int device) { return ones({2}, {.device = Device::cuda(device)}); };
  std::jthread([&] {
    use(3);
    EXPECT_EQ(cuda::current_stream().device(), 3);
    use(5);
    EXPECT_EQ(cuda::current_stream().device(), 3);
  }).join();
  std::jthread([&] {
    use(0);
    use(2);
    EXPECT_EQ(cuda::current_stream().device(), 0);
  }).join();
  EXPECT_EQ(contexts_after(before), (std::vector<std::set<int>>{{3, 5}, {0, 2}}));
}

}  // namespace
}  // namespace tutti
