// Tests of ResNet-18, ResNet-50 and ResNeXt-50 against torchvision's, and of ResNet-20 against a
// second implementation in PyTorch (tests/fixtures/make_resnet.py): outputs,
// all gradients and all running statistics. Both sides compute the weights by the same formula.
#include "formula.h"

#include <tutti/nn/models/resnet.h>

namespace tutti {
namespace {

using namespace nn;

class ResNetFixture : public ::testing::TestWithParam<std::pair<const char*, std::int64_t>> {
 protected:
  void expect_summary_of(const std::string& name, const Tensor& own) const {
    expect_summary(name, own, fixture.at(GetParam().first + ("/" + name)));
  }

  static bool is_resnext() { return std::string(GetParam().first).starts_with("resnext"); }

  const Tensors fixture = read_fixture(is_resnext() ? "resnext.safetensors" : "resnet.safetensors");
};

TEST_P(ResNetFixture, AgreesWithTorchvision) {
  const auto& [name, size] = GetParam();
  const auto net = resnet(name);
  StateDict state;
  for (const auto& [key, p] : net->named_parameters())
    state.emplace_back(key, parameter_value(key, p.shape()));
  net->load_state_dict(state, false);
  // Deep in a ResNeXt some inputs of a ReLU are so near zero that float32 may round them to its
  // other side, which changes gradients by a hundredth. The fixtures are computed in float64.
  const DType dtype = is_resnext() ? float64 : float32;
  net->to(Device::cpu(), dtype, MemoryFormat::channels_last);

  const Tensor x =
      make("input", {2, 3, size, size}, [](double u, std::int64_t) { return 1.75 * u; })
          .to(dtype)
          .contiguous(MemoryFormat::channels_last);
  x.requires_grad_();
  const Tensor y = (*net)(x);
  EXPECT_LT(distance(y.detach(), fixture.at(std::string(name) + "/y")), 1e-5);
  y.backward(make("gradient", y.shape(), [](double u, std::int64_t) { return u; }).to(dtype));

  expect_summary_of("input", x.grad());
  std::size_t checked = 2;  // y and input
  for (const auto& [key, p] : net->named_parameters()) expect_summary_of(key, p.grad()), ++checked;
  for (const auto& [key, b] : net->named_buffers())
    if (is_floating(b.dtype())) expect_summary_of(key, b), ++checked;
  std::size_t stored = 0;
  for (const auto& [key, tensor] : fixture) stored += key.rfind(std::string(name) + "/", 0) == 0;
  EXPECT_EQ(checked, stored);
}

INSTANTIATE_TEST_SUITE_P(Nets, ResNetFixture,
                         ::testing::Values(std::pair{"resnet20", 32}, std::pair{"resnet18", 64},
                                           std::pair{"resnet50", 64},
                                           std::pair{"resnext50_32x4d", 64}),
                         [](const auto& net) { return std::string(net.param.first); });

}  // namespace
}  // namespace tutti
