// Tests of ranks that are processes with CUDA tensors: every process runs the same tests on the
// same world. Usage: gpu_ranks BACKEND [RENDEZVOUS]. RENDEZVOUS is where NCCL ranks find each other
// if the environment does not say so. mpirun starts it with BACKEND mpi, where all ranks share the
// first device and tensors are staged; nccl_processes_test.cpp starts it with BACKEND nccl.
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
// where the backend moves data on the host.
Device own_device() {
  const char* shared = std::getenv("TUTTI_NCCL_SHARE_GPU");
  return world().capabilities().cuda_tensors && !shared ? Device::cuda(world().local_rank())
                                                        : Device::cuda(0);
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
  if (!world().capabilities().graph_capture)
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
    const std::string backend = argc > 1 ? argv[1] : "";
    const bool shared = std::getenv("TUTTI_NCCL_SHARE_GPU") != nullptr;
    const ProcessGroup group =
        ProcessGroup::from_environment({.backend = backend,
                                        .device = backend == "nccl" && !shared ? -1 : 0,
                                        .timeout = std::chrono::seconds(60)});
    const int failed = RUN_ALL_TESTS();
    group.barrier({.name = "the end"});
    if (failed == 0)
      std::printf("rank %d of %d: passed through %s\n", group.rank(), group.size(),
                  group.backend().c_str());
    return failed;
  } catch (const std::exception& error) {
    std::printf("caught: %s\n", error.what());
    return 3;
  }
}
