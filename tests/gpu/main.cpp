// The main function of the GPU tests: runs all suites on the first CUDA device. Without a device
// the exit code is 77, which ctest shows as skipped.
#include "../test_device.h"

#include <tutti/core/cuda/runtime.h>

#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!GTEST_FLAG_GET(list_tests)) {
    if (tutti::cuda::device_count() == 0) {
      std::printf("skipped: %s\n", tutti::cuda::why_unavailable().c_str());
      return 77;
    }
    tutti::test::test_device() = tutti::Device::cuda(0);
  }
  return RUN_ALL_TESTS();
}
