// Tests of ResNet-18, ResNet-50 and ResNeXt-50 against torchvision's, and of ResNet-20 against a
// second implementation in PyTorch (tests/fixtures/make_resnet.py): outputs,
// all gradients and all running statistics. Both sides compute the weights by the same formula.
#include "fixture.h"

#include <tutti/nn/resnet.h>

#include <cstdint>

namespace tutti {
namespace {

using namespace nn;

// Returns number i of the stream called `name`, in [-1, 1), as formula() in make_resnet.py does.
double formula(std::uint64_t seed, std::int64_t i) {
  std::uint64_t z = seed + (static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return static_cast<double>(z >> 40) * 0x1p-23 - 1;
}

std::uint64_t seed_of(const std::string& name) {
  std::uint64_t seed = 0xCBF29CE484222325ull;
  for (const char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return seed;
}

// Returns a float32 tensor of value(u, i) in row-major order, with u from the stream called `name`.
template <class Value>
Tensor make(const std::string& name, const Shape& shape, const Value& value) {
  const Tensor result = empty(shape);
  const std::uint64_t seed = seed_of(name);
  for (std::int64_t i = 0; i < result.numel(); ++i)
    result.data<float>()[i] = static_cast<float>(value(formula(seed, i), i));
  return result;
}

Tensor parameter_value(const std::string& name, const Shape& shape) {
  if (shape.size() > 1) {
    const double bound = std::sqrt(6 / static_cast<double>(product(shape, 1, shape.size())));
    return make(name, shape, [=](double u, std::int64_t) { return u * bound; });
  }
  if (name.rfind("fc", 0) == 0) return make(name, shape, [](double u, std::int64_t) { return u; });
  if (name.find("weight") != std::string::npos)
    return make(name, shape, [](double u, std::int64_t) { return 1 + 0.25 * u; });
  return make(name, shape, [kinds = seed_of("kind")](double u, std::int64_t i) {
    const double kind = formula(kinds, i);
    return (kind < -0.25 ? -3.0 : kind < -0.125 ? 1.0 : 3.0) + 0.25 * u;
  });
}

class ResNetFixture : public ::testing::TestWithParam<std::pair<const char*, std::int64_t>> {
 protected:
  // The norm and the dot product with a vector from the formula are compared, both relative to the
  // expected norm. A wrong element changes the dot product, a wrong scale changes both.
  void expect_summary(const std::string& name, const Tensor& own) const {
    const auto expected = to_vector(fixture.at(GetParam().first + ("/" + name)));
    ASSERT_TRUE(own.defined()) << name;
    const std::uint64_t seed = seed_of("dot." + name);
    double squares = 0, dot = 0;
    std::int64_t i = 0;
    for (const double v : to_vector(own)) {
      squares += v * v;
      dot += v * formula(seed, i++);
    }
    EXPECT_NEAR(std::sqrt(squares) / expected[0], 1, 1e-4) << name;
    EXPECT_LT(std::abs(dot - expected[1]) / expected[0], 1e-4) << name;
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

  expect_summary("input", x.grad());
  std::size_t checked = 2;  // y and input
  for (const auto& [key, p] : net->named_parameters()) expect_summary(key, p.grad()), ++checked;
  for (const auto& [key, b] : net->named_buffers())
    if (is_floating(b.dtype())) expect_summary(key, b), ++checked;
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
