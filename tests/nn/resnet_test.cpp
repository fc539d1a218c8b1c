// Tests of the ResNets: shapes, names, published parameter counts.
#include "distributed/messages.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/gradcheck.h>
#include <tutti/nn/models/resnet.h>

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace tutti {
namespace {

using namespace nn;

using Count = std::pair<const char*, std::int64_t>;
class ResNetCount : public ::testing::TestWithParam<Count> {};

TEST_P(ResNetCount, IsThePublishedOne) {
  EXPECT_EQ(resnet(GetParam().first)->parameter_count(), GetParam().second);
}

// He et al. give 0.27, 0.46, 0.66 and 0.85 million (table 6); torchvision documents the others
// exactly.
INSTANTIATE_TEST_SUITE_P(
    Nets, ResNetCount,
    ::testing::Values(Count{"resnet20", 269'722}, Count{"resnet32", 464'154},
                      Count{"resnet44", 658'586}, Count{"resnet56", 853'018},
                      Count{"resnet18", 11'689'512}, Count{"resnet34", 21'797'672},
                      Count{"resnet50", 25'557'032}, Count{"resnet101", 44'549'160},
                      Count{"resnet152", 60'192'808}, Count{"resnext50_32x4d", 25'028'904},
                      Count{"resnext101_32x8d", 88'791'336}, Count{"resnext101_64x4d", 83'455'272},
                      Count{"wide_resnet50_2", 68'883'240}, Count{"wide_resnet101_2", 126'886'696}),
    [](const auto& net) { return std::string(net.param.first); });

TEST(ResNet, NamesAreTorchvisions) {
  std::map<std::string, Shape> shapes;
  for (const auto& [name, tensor] : resnet("resnet50")->state_dict()) shapes[name] = tensor.shape();
  EXPECT_EQ(shapes.size(), 320u);  // len(torchvision.models.resnet50().state_dict())
  EXPECT_EQ(shapes.at("conv1.weight"), (Shape{64, 3, 7, 7}));
  EXPECT_EQ(shapes.at("bn1.num_batches_tracked"), Shape{});
  EXPECT_EQ(shapes.at("layer1.0.downsample.0.weight"), (Shape{256, 64, 1, 1}));
  EXPECT_EQ(shapes.at("layer1.0.downsample.1.running_var"), Shape{256});
  EXPECT_EQ(shapes.at("layer3.5.conv2.weight"), (Shape{256, 256, 3, 3}));
  EXPECT_EQ(shapes.at("layer4.2.bn3.weight"), Shape{2048});
  EXPECT_EQ(shapes.at("fc.weight"), (Shape{1000, 2048}));
}

TEST(ResNet, ResNeXtHasTorchvisionsShapes) {
  const auto net = resnet("resnext50_32x4d", {.classes = 7});
  EXPECT_EQ(net->describe(), "depth=50, classes=7, channels=3, groups=32, width_per_group=4");
  std::map<std::string, Shape> shapes;
  for (const auto& [name, tensor] : net->state_dict()) shapes[name] = tensor.shape();
  EXPECT_EQ(shapes.size(), 320u);
  EXPECT_EQ(shapes.at("layer1.0.conv1.weight"), (Shape{128, 64, 1, 1}));
  EXPECT_EQ(shapes.at("layer4.2.conv2.weight"), (Shape{1024, 32, 3, 3}));
  EXPECT_EQ(shapes.at("layer4.2.conv3.weight"), (Shape{2048, 1024, 1, 1}));
}

TEST(ResNet, TakesOtherImagesAndClasses) {
  const auto net = resnet("resnet20", {.classes = 7, .channels = 1});
  net->to(MemoryFormat::channels_last);
  EXPECT_EQ((*net)(rand({2, 1, 28, 28})).shape(), (Shape{2, 7}));
  EXPECT_EQ((*net)(rand({2, 1, 29, 31})).shape(),
            (Shape{2, 7}));  // odd sizes through the parameter-free shortcut
  EXPECT_EQ(net->describe(), "depth=20, classes=7, channels=1");
}

TEST(ResNet, TrainsInBfloat16) {
  const auto exact = resnet("resnet20"), rounded = resnet("resnet20");
  rounded->load_state_dict(exact->state_dict());
  rounded->to(std::nullopt, bfloat16, MemoryFormat::channels_last);
  const Tensor x = randn({4, 3, 16, 16});
  const Tensor y = (*exact)(x),
               z = (*rounded)(x.to(bfloat16).contiguous(MemoryFormat::channels_last));
  EXPECT_EQ(z.dtype(), bfloat16);
  EXPECT_EQ(rounded->bn1.weight.dtype(), float32);
  double gap = 0, size = 0;
  for (const double v : to_vector(y - z.to(float32))) gap += v * v;
  for (const double v : to_vector(y)) size += v * v;
  EXPECT_LT(std::sqrt(gap / size), 0.1);  // 8 bits of mantissa through 20 layers
  z.backward(ones(z.shape(), {.dtype = bfloat16}));
  for (const auto& [name, p] : rounded->named_parameters()) {
    EXPECT_EQ(p.grad().dtype(), p.dtype()) << name;
    for (const double v : to_vector(p.grad())) ASSERT_TRUE(std::isfinite(v)) << name;
  }
}

TEST(ResNet, BlocksPassGradcheck) {
  manual_seed(21);
  const auto check = [](Layer& block, std::int64_t channels, MemoryFormat format) {
    block.to(std::nullopt, float64, format);
    const Tensor x = rand({2, channels, 5, 4}, {.dtype = float64}).contiguous(format);
    const auto result = autograd::gradcheck([&](const auto& in) { return block(in[0]); }, {x});
    EXPECT_TRUE(result) << block.type_name() << ": " << result.message;
  };
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    BasicBlock same({.in = 3, .out = 3}),
        padded({.in = 2, .out = 5, .stride = 2, .project = false}),
        projected({.in = 2, .out = 4, .stride = 2});
    Bottleneck bottleneck({.in = 3, .width = 2, .stride = 2});
    check(same, 3, format);
    check(padded, 2, format);
    check(projected, 2, format);
    check(bottleneck, 3, format);
  }
}

TEST(ResNet, RefusesWhatItDoesNotKnow) {
  EXPECT_THROW(ResNet({.depth = 19}), ValueError);
  EXPECT_THROW(ResNet({.channels = 0}), ValueError);
  EXPECT_THROW(ResNet({.classes = -1}), ValueError);
  EXPECT_THROW(ResNet({.depth = 50, .groups = 0}), ValueError);
  EXPECT_THROW(ResNet({.depth = 18, .groups = 2}), ValueError);
  EXPECT_THROW(ResNet({.depth = 20, .width_per_group = 128}), ValueError);
  for (const std::int64_t large : {std::int64_t{1} << 21, std::int64_t{1} << 60}) {
    EXPECT_THROW(ResNet({.depth = 50, .width_per_group = large}), ValueError);
    EXPECT_THROW(ResNet({.depth = 50, .groups = large}), ValueError);
    EXPECT_THROW(Bottleneck({.in = 64, .width = large}), ValueError);
  }
  test::expect_error<ValueError>([] { resnet("resnet1001"); }, {"resnet20, resnet32"});
}

TEST(ResNet, StartsAsTorchvisions) {
  const auto net = resnet("resnet18", {.zero_init_residual = true});
  double squares = 0;
  const Tensor weight = net->stages[1]->state_dict()[0].second;  // layer2.0.conv1: fan_out 128 * 9
  for (const double v : to_vector(weight)) squares += v * v;
  EXPECT_NEAR(squares / static_cast<double>(weight.numel()), 2.0 / (128 * 9),
              0.03 * 2.0 / (128 * 9));
  for (const auto& [name, tensor] : net->named_parameters())
    if (name.find("bn2.weight") != std::string::npos) {
      EXPECT_EQ(to_vector(tensor), std::vector<double>(static_cast<std::size_t>(tensor.numel()), 0))
          << name;
    }
  EXPECT_EQ(to_vector(resnet("resnet20")->bn1.weight), std::vector<double>(16, 1));
}

}  // namespace
}  // namespace tutti
