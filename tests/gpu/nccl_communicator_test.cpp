// Tests of the NCCL backend's Communicator alone, over the fake NCCL. They run in the emulator
// only.
#include "emulator/streams.h"

#include <tutti/core/cuda/stream.h>
#include <tutti/distributed/agreement.h>
#include <tutti/distributed/backends/nccl/communicator.h>
#include <tutti/distributed/launch/launch.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
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
          child.split(parent, 0, 0, 1, [] { std::this_thread::sleep_for(100us); });
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

// A channel takes megabytes of buffers for each peer, and a multiprocessor while a collective runs.
TEST(NcclCommunicator, OnlyThatOfTheGradientsHasAsManyChannelsAsNcclLikes) {
  const std::size_t before = emulator::nccl_channels().size();
  distributed::run_ranks(2, [](const ProcessGroup& group) { group.barrier(); },
                         {.backend = "nccl", .timeout = 60s});
  std::vector<int> channels = emulator::nccl_channels();
  channels.erase(channels.begin(), channels.begin() + static_cast<std::ptrdiff_t>(before));
  std::ranges::sort(channels);
  // For each rank: the gradients' with NCCL's choice, the one for set-up, and the statistics'.
  EXPECT_EQ(channels, (std::vector{NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, 1, 1, 2, 2}));
}

// The devices stand still in the middle of a step, and the ranks agree to stop all the same.
TEST(NcclStopAgreement, TheHostWaitsForNoStepThatTheDeviceHasStillToCompute) {
  distributed::run_ranks(
      2,
      [](const ProcessGroup& group) {
        distributed::StopRequest request{0};
        distributed::StopAgreement stop(group, &request);
        const auto step = [&] {
          stop.begin_step();
          stop.end_step();
        };
        for (int i = 0; i < 9; ++i) step();
        if (group.rank() == 1) request = SIGUSR1;
        step();
        const auto gate = emulator::make_signal();
        emulator::wait(emulator::stream_of(cuda::current_stream(group.local_rank()).get()), gate);
        for (int i = 0; i < 9; ++i) step();
        EXPECT_EQ(stop.signal(), 0);
        step();
        EXPECT_EQ(stop.signal(), SIGUSR1);
        emulator::raise(gate);
      },
      {.backend = "nccl", .timeout = 60s});
}

}  // namespace
}  // namespace tutti
