// Tests of ranks that are processes with CUDA tensors: every process runs the same tests on the
// same world, which mpirun has started. Usage: gpu_ranks staged, where all ranks share the first
// device, or gpu_ranks nccl.
#include "../../distributed/conformance.h"
#include "../../distributed/messages.h"
#include "../captured_step.h"

#include <tutti/core/cuda/runtime.h>
#include <tutti/core/parallel.h>
#include <tutti/optim/adam.h>

#include <cstdio>
#include <cstdlib>

namespace tutti {
namespace {

using namespace distributed;

// Returns the device of this rank. All ranks share one where TUTTI_NCCL_SHARE_GPU says so, and
// where data moves through the host.
Device own_device() {
  const bool shared = std::getenv("TUTTI_NCCL_SHARE_GPU") || !world().why_staged().empty();
  return Device::cuda(shared ? 0 : world().local_rank());
}

TEST(GpuRanks, Conform) { test::check_conformance_on(world(), own_device()); }

TEST(GpuRanks, TensorsOfTheHostToo) { test::check_conformance(world()); }

TEST(GpuRanks, ManyStepsOfSmallAndLargeOnes) {
  const Device device = own_device();
  for (int step = 0; step < 20; ++step) {
    const Tensor bucket = full({1 << 20}, world().rank() + 1.0, {.device = device});
    Work large = world().all_reduce(bucket, ReduceOp::sum, {.name = "bucket"});
    const Tensor packet = full({130}, step, {.dtype = float64, .device = device});
    world().for_normalization().all_reduce(packet, ReduceOp::sum, {.name = "bn"}).wait();
    EXPECT_EQ(packet.select(0, 129).item<double>(), step * world().size());
    large.wait();
    EXPECT_EQ(bucket.select(0, 12345).item<double>(), world().size() * (world().size() + 1) / 2.0);
  }
}

TEST(GpuRanks, AReplayedStepComesToTheSameBits) {
  if (!world().capabilities(own_device()).graph_capture)
    GTEST_SKIP() << "only the collectives of NCCL can be captured, these pass through the host";
  test::StepCase c;
  c.optimizer = [](const std::vector<Tensor>& parameters) {
    return std::make_unique<optim::AdamW>(parameters, optim::AdamW::Options{.lr = 0.01});
  };
  c.clip = 0.5;
  const Device device = own_device();
  const auto eager = test::train_captured(c, device, world(), test::never);
  EXPECT_EQ(test::train_captured(c, device, world(), 4), eager) << "rank " << world().rank();
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  using namespace tutti;
  set_num_threads(1);
  if (cuda::device_count() == 0) {
    std::printf("skipped: %s\n", cuda::why_unavailable().c_str());
    return 77;
  }
  try {
    const bool nccl = argc > 1 && std::string(argv[1]) == "nccl",
               shared = std::getenv("TUTTI_NCCL_SHARE_GPU") != nullptr;
    const ProcessGroup group = ProcessGroup::from_environment(
        {.device = nccl && !shared ? -1 : 0, .nccl = nccl, .timeout = std::chrono::seconds(60)});
    if (nccl && !group.why_staged().empty()) {
      std::printf("skipped: %s\n", group.why_staged().c_str());
      return 77;
    }
    const int failed = RUN_ALL_TESTS();
    group.barrier({.name = "the end"});
    if (failed == 0)
      std::printf("rank %d of %d: passed through %s\n", group.rank(), group.size(),
                  nccl ? "nccl" : "the hosts");
    return failed;
  } catch (const std::exception& error) {
    std::printf("caught: %s\n", error.what());
    return 3;
  }
}
