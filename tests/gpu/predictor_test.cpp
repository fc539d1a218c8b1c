// Tests a Predictor whose network is on a device.
#include "../kernels/compare.h"
#include "../test_device.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/nn/models/predictor.h>
#include <tutti/nn/models/resnet.h>

#include <gtest/gtest.h>

namespace tutti::predictor_test {
namespace {

TEST(Predictor, ClassifiesPicturesOfTheHostOnTheDevice) {
  const nn::ModelCard card{.model = "resnet20",
                           .classes = 4,
                           .channels = 3,
                           .mean = {0.5, 0.5, 0.5},
                           .std = {0.2, 0.2, 0.2},
                           .input_size = 8};
  const auto make = [&](Device device) {
    const auto net = nn::resnet(card.model, {.classes = card.classes});
    manual_seed(1);
    for (const Tensor& parameter : net->parameters())
      parameter.detach().copy_(randn(parameter.shape()) * 0.1);
    net->to(device);
    return nn::Predictor(net, card, {.preprocess = [](const Tensor& picture, const auto&) {
                           return picture.to(float32).permute({2, 0, 1});
                         }});
  };
  const nn::Predictor there = make(test::test_device()), here = make(Device::cpu());
  const Tensor input = randn({2, 3, 8, 8});
  EXPECT_EQ(there.logits(input).device(), test::test_device());
  EXPECT_LT(test::relative_error(there.logits(input), here.logits(input)), 1e-4);
  const Tensor picture = randint(256, {8, 8, 3}, {uint8});
  const auto classes = there.classify(picture), expected = here.classify(picture);
  ASSERT_EQ(classes.size(), 4u);
  for (std::size_t i = 0; i < classes.size(); ++i)
    EXPECT_NEAR(classes[i].probability, expected[i].probability, 1e-4);
}

}  // namespace
}  // namespace tutti::predictor_test
