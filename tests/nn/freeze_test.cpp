// Tests of nn::freeze() and of frozen batch normalisation.
#include "distributed/messages.h"

#include <tutti/autograd/functions.h>
#include <tutti/nn/freeze.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/optim/sgd.h>

namespace tutti {
namespace {

using test::expect_error;
using Paths = std::vector<std::string>;

TEST(Freeze, ABatchNormUsesAndKeepsItsRunningStatisticsInTraining) {
  nn::BatchNorm2d layer({.channels = 3});
  layer(randn({8, 3, 4, 4}) * 2 + 1);
  layer.freeze();
  const auto mean = to_vector(layer.running_mean), var = to_vector(layer.running_var);
  const Tensor x = randn({8, 3, 4, 4});
  ASSERT_TRUE(layer.is_training());
  const Tensor frozen = layer(x);
  EXPECT_EQ(to_vector(layer.running_mean), mean);
  EXPECT_EQ(to_vector(layer.running_var), var);
  EXPECT_FALSE(frozen.requires_grad());
  layer.eval();
  EXPECT_EQ(to_vector(frozen), to_vector(layer(x)));
  layer.train();
  layer.freeze(false);
  EXPECT_TRUE(layer.weight.requires_grad());
  EXPECT_TRUE(layer(x).requires_grad());
  EXPECT_NE(to_vector(layer.running_mean), mean);
}

TEST(Freeze, AFrozenLayerPassesTheGradientOfItsInput) {
  nn::BatchNorm2d layer({.channels = 2});
  layer.running_var.fill_(4 - 1e-5);
  layer.freeze();
  const Tensor x = randn({4, 2, 3, 3}).requires_grad_();
  sum(layer(x)).backward();
  for (const double gradient : to_vector(x.grad())) EXPECT_NEAR(gradient, 0.5, 1e-6);
  EXPECT_FALSE(layer.weight.grad().defined());
}

TEST(Freeze, APatternSelectsParametersAndWholeBatchNorms) {
  nn::ResNet net({.depth = 20});
  const Paths paths = nn::freeze(net, "layer1.*");
  EXPECT_EQ(paths.front(), "layer1.0.conv1.weight");
  for (const auto& [path, parameter] : net.named_parameters())
    EXPECT_EQ(parameter.requires_grad(), !path.starts_with("layer1.")) << path;
  for (const auto& [path, module] : net.named_modules())
    if (const auto* layer = dynamic_cast<const nn::BatchNorm*>(module)) {
      EXPECT_EQ(layer->is_frozen(), path.starts_with("layer1.")) << path;
    }
  nn::freeze(net, "*", false);
  for (const auto& [path, parameter] : net.named_parameters())
    EXPECT_TRUE(parameter.requires_grad()) << path;
}

// The path of a layer, or one of its parameters, freezes all of it.
TEST(Freeze, ABatchNormIsFrozenAsAWhole) {
  for (const char* pattern : {"bn1", "bn1.weight"}) {
    nn::ResNet net({.depth = 20});
    EXPECT_EQ(nn::freeze(net, pattern), (Paths{"bn1.weight", "bn1.bias"})) << pattern;
    EXPECT_TRUE(net.bn1.is_frozen());
    EXPECT_TRUE(net.conv1->weight.requires_grad());
  }
}

TEST(Freeze, AFrozenPartStaysWhileTheRestTrains) {
  nn::ResNet net({.depth = 20, .classes = 3});
  nn::freeze(net, "[!f]*");
  std::vector<std::vector<double>> before;
  for (const auto& [name, tensor] : net.state_dict()) before.push_back(to_vector(tensor));
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  sum(square(net(randn({2, 3, 8, 8})))).backward();
  sgd.step();
  std::size_t i = 0;
  for (const auto& [name, tensor] : net.state_dict())
    EXPECT_EQ(to_vector(tensor) == before[i++], !name.starts_with("fc.")) << name;
}

TEST(Freeze, APatternThatMatchesNothingNamesWhatThereIs) {
  nn::ResNet net({.depth = 20});
  expect_error<ValueError>([&] { nn::freeze(net, "layer9.*"); },
                           {"layer9.*", "conv1.weight", "bn1.weight"});
}

}  // namespace
}  // namespace tutti
