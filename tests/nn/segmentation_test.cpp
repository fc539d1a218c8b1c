// Tests of FCN and DeepLabV3: outputs, all gradients and all running statistics against
// torchvision's (tests/fixtures/make_segmentation.py), and ASPP with one image on each rank.
#include "distributed/messages.h"
#include "formula.h"
#include "kernels/compare.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/distributed/process_group.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/fold.h>
#include <tutti/nn/dropout.h>
#include <tutti/nn/functional/interpolate.h>
#include <tutti/nn/models/segmentation.h>

#include <algorithm>

namespace tutti {
namespace {

using namespace nn;
using test::expect_error;

void turn_dropout_off(Module& module) {
  module.apply([](Module& each) {
    if (dynamic_cast<Dropout*>(&each)) each.eval();
  });
}

// The tensors of the fixture that belong to one network.
class Fixture {
 public:
  explicit Fixture(const std::string& name) : name_(name) {}

  Tensor input(std::int64_t channels, std::int64_t size) const {
    const Shape shape{3, channels, size, size};
    return make("input", shape, [](double u, std::int64_t) { return 1.75 * u; }).to(float64);
  }
  // Gives a network the weights of the fixture. It computes in float64, because in float32 some
  // inputs of a ReLU are rounded to its other side, which changes gradients by a hundredth.
  void prepare(Module& net) const {
    StateDict state;
    for (const auto& [key, p] : net.named_parameters())
      state.emplace_back(key, parameter_value(key, p.shape()));
    net.load_state_dict(state, false);
    net.to(std::nullopt, float64, MemoryFormat::channels_last);
    turn_dropout_off(net);
  }
  // Compares an output, and returns its sum with the weights that stand for its gradient.
  Tensor check_output(const std::string& key, const Tensor& y) {
    const Tensor own = y.detach().slice(2, 0, y.size(2), 7).slice(3, 0, y.size(3), 7),
                 expected = at(key);
    const double range = (max(expected) - min(expected)).item<double>();
    EXPECT_LT(max(abs(own - expected)).item<double>(), 1e-5 * range) << key;
    return sum(y * make("gradient." + key, y.shape(), [](double u, std::int64_t) {
                     return u;
                   }).to(float64));
  }
  // Compares the gradients, or else the values, of parameters, and the running statistics.
  void check_state(const Module& net, bool gradients) {
    for (const auto& [key, p] : net.named_parameters())
      expect_summary(key, gradients ? p.grad() : p.detach(), at(key));
    for (const auto& [key, b] : net.named_buffers())
      if (is_floating(b.dtype())) expect_summary(key, b, at(key));
  }
  void check_input(const Tensor& x) { expect_summary("input", x.grad(), at("input")); }
  ~Fixture() {
    const auto stored = std::ranges::count_if(
        all_, [&](const auto& each) { return each.first.starts_with(name_ + "/"); });
    EXPECT_EQ(checked_, stored) << "the fixture has other tensors than the network";
  }

 private:
  Tensor at(const std::string& key) {
    ++checked_;
    return all_.at(name_ + "/" + key);
  }

  const std::string name_;
  const Tensors all_ = read_fixture("segmentation.safetensors");
  std::ptrdiff_t checked_ = 0;
};

Tensor upsampled(const Tensor& logits, std::int64_t size) {
  return interpolate(logits, {.size = {size}, .mode = InterpolateMode::bilinear});
}

TEST(Segmentation, DeepLabV3AndItsGradientsAreTorchvisions) {
  Fixture fixture("deeplabv3_resnet50");
  const auto net = segmentation_network("deeplabv3_resnet50", {.classes = 5, .auxiliary = true});
  fixture.prepare(*net);
  const Tensor x = fixture.input(3, 32).requires_grad_();
  const SegmentationNetwork::Logits small = net->logits(x);
  const Tensor total = fixture.check_output("out", upsampled(small.main, 32)) +
                       fixture.check_output("aux", upsampled(small.auxiliary, 32));
  total.backward();
  fixture.check_input(x);
  fixture.check_state(*net, true);
}

TEST(Segmentation, FcnIsTorchvisions) {
  const NoGrad no_grad;
  Fixture fixture("fcn_resnet50");
  const auto net = segmentation_network("fcn_resnet50", {.classes = 5, .auxiliary = true});
  fixture.prepare(*net);
  const SegmentationNetwork::Logits small = net->logits(fixture.input(3, 32));
  fixture.check_output("out", upsampled(small.main, 32));
  fixture.check_output("aux", upsampled(small.auxiliary, 32));
  fixture.check_state(*net, false);
}

// In these images all taps of the three dilations see more than padding.
TEST(Segmentation, AsppIsTorchvisions) {
  Fixture fixture("aspp");
  ASPP aspp({.in = 4, .out = 3});
  fixture.prepare(aspp);
  const Tensor x = fixture.input(4, 40).requires_grad_();
  fixture.check_output("out", aspp(x)).backward();
  fixture.check_input(x);
  fixture.check_state(aspp, true);
}

TEST(Segmentation, ComputesTheSameInEvaluationWithoutItsNormalisations) {
  const NoGrad no_grad;
  const auto net = segmentation_network("deeplabv3_resnet50", {.classes = 3});
  net->eval();
  const Tensor x = randn({1, 3, 40, 33}), y = (*net)(x);
  EXPECT_EQ(y.shape(), (Shape{1, 3, 40, 33}));
  EXPECT_EQ(fold_batch_norm(*net).folded.size(), 53u + 7u);
  EXPECT_LT(test::relative_error((*net)(x), y), 1e-4);
}

TEST(Segmentation, TheLossIsThatOfBothHeads) {
  const auto net = segmentation_network("fcn_resnet50", {.classes = 3, .auxiliary = true});
  turn_dropout_off(*net);
  const Tensor x = randn({3, 3, 32, 32}), targets = randint(3, {3, 32, 32}, {int64});
  targets.slice(1, 0, 5).fill_(255);
  const auto of = [&](const Tensor& logits) {
    return cross_entropy(upsampled(logits, 32), targets, {.ignore_index = 255});
  };
  const SegmentationNetwork::Logits logits = net->logits(x);
  const double expected = of(logits.main).item<double>() +
                          0.4 * of(logits.auxiliary).item<double>();
  EXPECT_NEAR(net->loss(x, targets, {.ignore_index = 255}, 0.4).item<double>(), expected, 1e-5);
}

TEST(Segmentation, Errors) {
  expect_error<ValueError>(
      [] { FCN net({.depth = 18}); },
      {"replace_stride_with_dilation needs bottlenecks, which depth 18 has not"});
  EXPECT_THROW(FCN({.classes = 0}), ValueError);
  expect_error<ValueError>(
      [] { segmentation_network("fcn_resnet18"); },
      {"expected one of fcn_resnet50, fcn_resnet101, deeplabv3_resnet50, ", "fcn_resnet18"});
}

// The average over one image is one value for each channel. PyTorch's BatchNorm throws for it.
TEST(Segmentation, AsppTrainsOnOneImageForEachRankOnlyWithSynchronisedStatistics) {
  const Tensor images = randn({2, 8, 6, 6});
  ASPP whole({.in = 8, .out = 4});
  turn_dropout_off(whole);
  const Tensor expected = whole(images).detach();
  const StateDict weights = whole.state_dict();
  distributed::run_ranks(2, [&](const ProcessGroup& world) {
    ASPP part({.in = 8, .out = 4});
    part.load_state_dict(weights);
    turn_dropout_off(part);
    const std::int64_t rank = world.rank();
    const Tensor image = images.slice(0, rank, rank + 1);
    EXPECT_THROW(part(image), ShapeError);
    convert_sync_batchnorm(part, world);
    EXPECT_LT(test::relative_error(part(image), expected.slice(0, rank, rank + 1)), 1e-5);
  });
}

}  // namespace
}  // namespace tutti
