// Tests of NCCL ranks that are processes. Each test starts gpu_ranks with the variables of
// torchrun: ranks that share one GPU and pretend to be on hosts of their own (NCCL_HOSTID), one
// rank for each GPU, and ranks of which one fails. The rendezvous uses TCP.
#include "../../distributed/messages.h"
#include "../../distributed/process.h"

#include <tutti/core/cuda/runtime.h>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace tutti {
namespace {

using test::expect_contains;
using test::Process;

// Starts the processes of a world.
std::vector<Process> start(int ranks, bool share, const std::string& fault = {}) {
  const std::string port = test::free_port();
  std::vector<Process> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string r = std::to_string(rank);
    std::vector<std::string> variables = {"RANK=" + r,
                                          "LOCAL_RANK=" + r,
                                          "WORLD_SIZE=" + std::to_string(ranks),
                                          "TORCHELASTIC_RUN_ID=test",
                                          "MASTER_ADDR=127.0.0.1",
                                          "MASTER_PORT=" + port};
    if (share)
      for (const char* variable : {"TUTTI_NCCL_SHARE_GPU=1", "NCCL_SOCKET_IFNAME=lo",
                                   "NCCL_IB_DISABLE=1", "NCCL_MNNVL_ENABLE=0"})
        variables.emplace_back(variable);
    if (share) variables.push_back("NCCL_HOSTID=tutti-test-" + r);
    if (!fault.empty()) variables.push_back("TUTTI_FAULT=" + fault);
    processes.emplace_back(std::vector<std::string>{GPU_RANKS, "nccl", "--gtest_brief=1"},
                           variables);
  }
  return processes;
}

class NcclProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << cuda::why_unavailable();
  }
};

TEST_F(NcclProcesses, ShareOneGpu) {
  for (const int ranks : {2, 3}) {
    std::vector<Process> processes = start(ranks, true);
    for (int rank = 0; rank < ranks; ++rank) {
      Process& process = processes[static_cast<std::size_t>(rank)];
      expect_contains(process.rest(),
                      {fmt::format("rank {} of {}: passed through nccl", rank, ranks)});
      EXPECT_EQ(process.exit_code(), 0) << "rank " << rank;
    }
  }
}

TEST_F(NcclProcesses, OneGpuForEach) {
  const int ranks = std::min(cuda::device_count(), 8);
  if (ranks < 2) GTEST_SKIP() << "needs 2 GPUs, found " << ranks;
  for (Process& process : start(ranks, false)) {
    expect_contains(process.rest(), {"passed through nccl"});
    EXPECT_EQ(process.exit_code(), 0);
  }
}

TEST_F(NcclProcesses, AKilledRankIsNamedByTheOthers) {
  std::vector<Process> processes = start(2, true, "rank=1,collective=40,action=kill");
  expect_contains(processes[0].rest(), {"rank 1", "has ended"});
  EXPECT_NE(processes[0].exit_code(), 0);
  EXPECT_EQ(processes[1].exit_code(), -SIGKILL);
}

TEST_F(NcclProcesses, TheSameGpuTwiceIsRefused) {
  std::vector<Process> processes;
  const std::string port = test::free_port();
  for (const char* rank : {"0", "1"})
    processes.emplace_back(
        std::vector<std::string>{GPU_RANKS, "nccl"},
        std::vector<std::string>{std::string("RANK=") + rank, "LOCAL_RANK=0", "WORLD_SIZE=2",
                                 "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port});
  for (Process& process : processes) {
    expect_contains(process.rest(),
                    {"caught: ", "ranks 0 and 1 have the same GPU", "TUTTI_NCCL_SHARE_GPU=1"});
    EXPECT_EQ(process.exit_code(), 3);
  }
}

}  // namespace
}  // namespace tutti
