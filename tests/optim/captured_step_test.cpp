// Steps that run as they are, because there is no device for a graph. With a device they are tested
// in tests/gpu.
#include <tutti/optim/captured_step.h>

#include <tutti/core/create.h>
#include <tutti/core/cuda/runtime.h>

#include <gtest/gtest.h>

namespace tutti::optim {
namespace {

TEST(CapturedStep, SaysOnceWhyThereIsNoGraph) {
  if (cuda::device_count() > 0) GTEST_SKIP() << "there is a CUDA device";
  std::vector<double> seen;
  std::vector<std::string> said;
  CapturedStep step(
      [&](const std::vector<Tensor>& inputs, std::int64_t global_size) {
        seen.push_back(inputs.at(0).item<double>() + static_cast<double>(global_size));
      },
      Device::cuda(), [&](const std::string& line) { said.push_back(line); });
  for (int i = 0; i < 6; ++i) step.run({scalar(i), Tensor()}, 10);
  EXPECT_EQ(seen, (std::vector<double>{10, 11, 12, 13, 14, 15}));
  ASSERT_EQ(said.size(), 1u);
  EXPECT_TRUE(said[0].starts_with("cuda graph: none, steps run as they are: ")) << said[0];
}

}  // namespace
}  // namespace tutti::optim
