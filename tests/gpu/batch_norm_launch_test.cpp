// Tests how the kernels of batch norm report to the host.
#include "../test_device.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/pinned_memory.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/kernels/kernels.h>

#include <gtest/gtest.h>

#include <functional>

namespace tutti::batch_norm_launch_test {
namespace {

using test::test_device;

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
  const kernels::BatchNorm& table = kernels::on(test_device()).batch_norm;
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
      expect_header(reported([&](auto* report) {
                      table.apply_grad({.dy = x, .saved = {to, x}, .sums = sums, .report = report});
                    }),
                    expected);
    }
}

// The memory of a Readback goes to the next one; a kernel of the first may still write then.
TEST(BatchNormLaunch, AReadbackThatWasDroppedDoesNotReachTheNextOne) {
  const kernels::BatchNorm& table = kernels::on(test_device()).batch_norm;
  const Tensor first = full({kernels::packet_size(1)}, 1, {float64, test_device()}),
               second = full({kernels::packet_size(1)}, 2, {float64, test_device()}),
               dy = empty({0, 1}, {float32, test_device()});
  for (int i = 0; i < 50; ++i) {
    {
      const cuda::Readback dropped(test_device().index(), sizeof(PacketHeader));
      table.apply_grad({.dy = dy,
                        .saved = {},
                        .sums = first,
                        .report = static_cast<kernels::HeaderReport*>(dropped.device_data())});
    }
    const PacketHeader got = reported([&](auto* report) {
      table.apply_grad({.dy = dy, .saved = {}, .sums = second, .report = report});
    });
    EXPECT_EQ(got.count, 2);
  }
}

}  // namespace
}  // namespace tutti::batch_norm_launch_test
