// Tests of the NCCL backend's Communicator alone, over the fake NCCL. They run in the emulator
// only.
#include <tutti/core/cuda/stream.h>
#include <tutti/distributed/backends/nccl/communicator.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace tutti {
namespace {

using distributed::nccl::Communicator;
using namespace std::chrono_literals;

// The fake NCCL aborts the process where a call meets an abort.
TEST(NcclCommunicator, AnAbortMeetsNoSplit) {
  const cuda::DeviceScope scope(0);
  for (int i = 0; i < 500; ++i) {
    Communicator parent(0);
    ncclUniqueId id = {};
    distributed::nccl::check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    parent.join(id, 0, 1, [] {});
    EXPECT_TRUE(parent.has_joined());
    std::atomic<int> splits = 0;
    std::jthread splitting([&] {
      const cuda::DeviceScope here(0);
      const auto split_for_ever = [&] {
        while (true) {
          Communicator child(0);
          child.split(parent, 0, 0, [] { std::this_thread::sleep_for(100us); });
          ++splits;
          std::this_thread::sleep_for(50us);
        }
      };
      EXPECT_THROW(split_for_ever(), DistributedError);
    });
    while (splits <= i % 3) std::this_thread::yield();
    parent.abort();
    splitting.join();
    EXPECT_TRUE(parent.has_joined()) << "it must not join again, because it would not be aborted";
  }
}

}  // namespace
}  // namespace tutti
