// Tests of NCCL's Communicator alone, over the fake NCCL. They run in the emulator
// only.
#include "emulator/streams.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/stream.h>
#include <tutti/distributed/agreement.h>
#include <tutti/distributed/backends/nccl/communicator.h>
#include <tutti/distributed/process_group.h>

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

ncclUniqueId new_id() {
  ncclUniqueId id = {};
  distributed::nccl::check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return id;
}

// The fake NCCL aborts the process where a call meets an abort.
TEST(NcclCommunicator, AnAbortMeetsNoSetUp) {
  const cuda::DeviceScope scope(0);
  for (int i = 0; i < 500; ++i) {
    Communicator communicator(0);
    std::atomic<bool> has_begun = false;
    std::jthread connecting([&] {
      const cuda::DeviceScope here(0);
      const auto poll = [&] {
        has_begun = true;
        std::this_thread::sleep_for(100us);
        if (i % 2) throw DistributedError("gives up");
      };
      try {
        communicator.connect(new_id(), 0, 1, 1, poll);
        EXPECT_EQ(i % 2, 0);
      } catch (const DistributedError&) {}
    });
    while (!has_begun) std::this_thread::yield();
    communicator.abort();
  }
}

TEST(NcclCommunicator, AnAbortEndsACallThatWaitsForAnotherRank) {
  setenv("NCCL_RUNTIME_CONNECT", "1", 1);
  const ncclUniqueId id = new_id();
  Communicator ranks[] = {Communicator(0), Communicator(1)};
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const cuda::DeviceScope here(rank);
      ranks[rank].connect(id, rank, 2, 1, [] {});
      if (rank == 1) return;
      const Tensor x = ones({4}, {.device = Device::cuda(0)});
      EXPECT_THROW(ranks[0].run("ncclAllReduce",
                                [&](ncclComm_t comm) {
                                  return ncclAllReduce(x.raw(), x.raw(), 4, ncclFloat32, ncclSum,
                                                       comm, cuda::current_stream(0).get());
                                }),
                   DistributedError);
    });
  threads[1].join();
  std::this_thread::sleep_for(50ms);
  ranks[0].abort();
  threads.clear();
  setenv("NCCL_RUNTIME_CONNECT", "0", 1);
}

// A channel takes megabytes of buffers for each peer, and a multiprocessor while a collective runs.
TEST(NcclCommunicator, OnlyThatOfTheGradientsHasAsManyChannelsAsNcclLikes) {
  const auto made_by = [](const std::function<void(const ProcessGroup&)>& fn) {
    const std::size_t before = emulator::nccl_channels().size();
    distributed::run_ranks(2, fn, 60s);
    std::vector<int> channels = emulator::nccl_channels();
    channels.erase(channels.begin(), channels.begin() + static_cast<std::ptrdiff_t>(before));
    std::ranges::sort(channels);
    return channels;
  };
  const auto reduce = [](const ProcessGroup& group) {
    group.all_reduce(ones({4}, {.device = Device::cuda(group.local_rank())})).wait();
  };
  EXPECT_EQ(made_by([](const ProcessGroup& group) {
              group.barrier();
              group.split(0).all_reduce(ones({4})).wait();
            }),
            std::vector<int>())
      << "groups of CPU tensors need none";
  // For each rank: the one for set-up, and the gradients' with NCCL's choice.
  EXPECT_EQ(made_by(reduce), (std::vector{NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, 1, 1}));
  EXPECT_EQ(made_by([&](const ProcessGroup& group) { reduce(group.for_normalization()); }),
            (std::vector{1, 1, 2, 2}));
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
        const auto gate = emulator::make_signal();
        emulator::wait(emulator::stream_of(cuda::current_stream(group.local_rank()).get()), gate);
        for (int i = 0; i < 9; ++i) step();
        EXPECT_EQ(stop.signal(), 0);
        group.barrier();
        if (group.rank() == 1) request = SIGUSR1;
        step();
        EXPECT_EQ(stop.signal(), SIGUSR1);
        emulator::raise(gate);
      },
      60s);
}

}  // namespace
}  // namespace tutti
