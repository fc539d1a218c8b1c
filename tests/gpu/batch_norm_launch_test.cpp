// Tests how batch norm starts its kernels: persistent ones beside other launches of the same
// kernel, and not at all where they would wait for a collective; and how kernels report to the
// host.
#include "../test_device.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/core/create.h>
#include <tutti/core/cuda/collectives.h>
#include <tutti/core/cuda/graph.h>
#include <tutti/core/cuda/readback.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/distributed/backends/nccl/nccl.h>
#include <tutti/distributed/launch/launch.h>
#include <tutti/distributed/process_group.h>
#include <tutti/kernels/batch_norm.h>
#include <tutti/nn/batch_norm/layer.h>

#include <gtest/gtest.h>

#include <functional>

namespace tutti {
namespace {

using test::test_device;

constexpr std::int64_t channels = 16;

// Returns input of which a persistent kernel keeps `depth` vectors in each thread of every
// multiprocessor's block.
Tensor input_of_depth(std::int64_t depth) {
  const int multiprocessors = cuda::properties(test_device().index()).multiprocessors;
  const std::int64_t rows_of_a_block = 512 / (channels / 4);  // of 4 float32 in each vector
  Generator generator(3);
  return randn({depth * rows_of_a_block * multiprocessors / 4, channels, 2, 2}, {}, generator)
      .contiguous(MemoryFormat::channels_last)
      .to(test_device());
}

nn::BatchNorm layer() { return nn::BatchNorm({.channels = channels, .device = test_device()}); }

// A captured launch needs the shared memory that its kernel was allowed at the capture.
TEST(BatchNormLaunch, ASmallerLaunchLeavesACapturedOneItsSharedMemory) {
  const NoGrad no_grad;
  nn::BatchNorm bn = layer();
  const Tensor large = input_of_depth(15), small = input_of_depth(6);
  const Tensor expected = bn(large), expected_small = bn(small);
  Tensor y, y_small;
  // The emulator checks a kernel's limit when the capture ends, so a smaller launch is captured
  // too.
  cuda::Graph graph(test_device(), [&] { y = bn(large), y_small = bn(small); });
  EXPECT_EQ(to_vector(bn(small)), to_vector(expected_small));
  graph.replay();
  EXPECT_EQ(to_vector(y_small), to_vector(expected_small));
  EXPECT_EQ(to_vector(y), to_vector(expected));
}

TEST(BatchNormLaunch, NoPersistentKernelRunsBesideCollectives) {
  const NoGrad no_grad;
  nn::BatchNorm bn = layer();
  const Tensor x = input_of_depth(6);
  const Tensor persistent = bn(x);
  const auto launches = [&] { return cuda::Graph(test_device(), [&] { bn(x); }).size(); };
  const std::size_t alone = launches();
  {
    const cuda::CollectivesScope communicator(test_device().index());
    EXPECT_TRUE(cuda::runs_collectives(test_device().index()));
    EXPECT_GT(launches(), alone) << "the streaming kernels need at least one launch more";
    const auto got = to_vector(bn(x)), want = to_vector(persistent);
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5);
  }
  EXPECT_FALSE(cuda::runs_collectives(test_device().index()));
  EXPECT_EQ(launches(), alone);
}

TEST(BatchNormLaunch, ANcclGroupOfSeveralRanksRunsCollectivesOnItsDevices) {
  if (const std::string why = distributed::nccl::why_unavailable(); !why.empty())
    GTEST_SKIP() << why;
  if (cuda::device_count() < 2) GTEST_SKIP() << "it needs two devices";
  for (const int ranks : {1, 2})
    distributed::run_ranks(ranks,
                           [&](const ProcessGroup& group) {
                             EXPECT_EQ(cuda::runs_collectives(group.rank()), ranks > 1);
                           },
                           {.backend = "nccl", .timeout = std::chrono::seconds(60)});
}

using kernels::PacketHeader;

// Returns the header that a kernel reports when `launch` launches it.
PacketHeader reported(const std::function<void(kernels::HeaderReport*)>& launch) {
  const cuda::Readback readback(test_device().index(), sizeof(PacketHeader));
  EXPECT_FALSE(readback.arrived());
  launch(static_cast<kernels::HeaderReport*>(readback.device_data()));
  readback.wait("test");
  EXPECT_TRUE(readback.arrived());
  const std::int64_t waits = cuda::synchronizations();
  readback.wait("test");
  EXPECT_EQ(cuda::synchronizations(), waits) << "what has arrived is not waited for";
  return *static_cast<const PacketHeader*>(readback.data());
}

void expect_header(const PacketHeader& got, const PacketHeader& expected) {
  EXPECT_EQ(got.count, expected.count);
  EXPECT_EQ(got.input_grad, expected.input_grad);
  EXPECT_EQ(got.backward, expected.backward);
  EXPECT_EQ(got.fingerprint, expected.fingerprint);
  EXPECT_EQ(got.fingerprint_squared, expected.fingerprint_squared);
}

// Without elements, too: a rank with an empty batch checks the headers of the others.
TEST(BatchNormLaunch, KernelsReportTheHeaderThatTheyRead) {
  const kernels::BatchNorm& table = kernels::batch_norm(test_device());
  const TensorOptions wide{float64, test_device()};
  const PacketHeader expected{
      .count = 24, .input_grad = 1, .backward = 2, .fingerprint = 3, .fingerprint_squared = 9};
  for (const std::int64_t samples : {6, 0})
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const Tensor x = ones({samples, 5, 2, 2}).contiguous(format).to(test_device()),
                   sums = ones({kernels::packet_size(5)}, wide), moments = empty_like(sums),
                   mean = zeros({5}, wide), rstd = ones({5}, wide), out = empty_like(x);
      copy_bytes(sums.raw(), test_device(), &expected, Device::cpu(), sizeof(expected));
      const kernels::Normalization to{.mean = mean, .rstd = rstd, .weight = {}, .bias = {}};
      expect_header(reported([&](auto* report) {
                      table.finalize_and_apply({.x = x,
                                                .sums = sums,
                                                .moments = moments,
                                                .normalization = to,
                                                .y = out,
                                                .report = report});
                    }),
                    expected);
      expect_header(reported([&](auto* report) {
                      table.apply_grad({.dy = x,
                                        .saved = {to, x},
                                        .sums = sums,
                                        .moments = moments,
                                        .dx = out,
                                        .report = report});
                    }),
                    expected);
      expect_header(reported([&](auto* report) { table.report_header(sums, report); }), expected);
    }
}

// The memory of a Readback goes to the next one; a kernel of the first may still write then.
TEST(BatchNormLaunch, AReadbackThatWasDroppedDoesNotReachTheNextOne) {
  const kernels::BatchNorm& table = kernels::batch_norm(test_device());
  const Tensor first = full({kernels::packet_size(1)}, 1, {float64, test_device()}),
               second = full({kernels::packet_size(1)}, 2, {float64, test_device()});
  for (int i = 0; i < 50; ++i) {
    {
      const cuda::Readback dropped(test_device().index(), sizeof(PacketHeader));
      table.report_header(first, static_cast<kernels::HeaderReport*>(dropped.device_data()));
    }
    const PacketHeader got = reported([&](auto* report) { table.report_header(second, report); });
    EXPECT_EQ(got.count, 2);
  }
}

}  // namespace
}  // namespace tutti
