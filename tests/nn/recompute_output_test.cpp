// Tests of BatchNorm::Options::recompute_output: a step has the same bits with it as without it,
// whatever it is combined with, and keeps less memory.
#include "distributed/equal_bits.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/autograd/node.h>
#include <tutti/core/create.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/distributed/world.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/fold.h>
#include <tutti/nn/flatten.h>
#include <tutti/nn/freeze.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/optim/sgd.h>

#include <gtest/gtest.h>

#include <functional>
#include <optional>

namespace tutti {
namespace {

using namespace nn;
using test::expect_equal_bits;

constexpr std::int64_t samples = 4;

// Blocks of both kinds of shortcut, and more of them in a row than a chain of recipes has.
std::shared_ptr<Layer> bottlenecks() {
  auto net = std::make_shared<Sequential>();
  net->append<Conv2d>({.in = 3, .out = 8, .kernel = 3, .bias = false});
  net->append<BatchNorm2d>({.channels = 8});
  net->append<MaxPool2d>({.kernel = 2});
  net->append<Bottleneck>({.in = 8, .width = 4});
  for (int i = 0; i < 6; ++i) net->append<Bottleneck>({.in = 16, .width = 4});
  net->append<Bottleneck>({.in = 16, .width = 8, .stride = 2});
  net->append<AdaptiveAvgPool2d>();
  net->append<Flatten>();
  net->append<Linear>({.in = 32, .out = 10});
  return net;
}

// How a step differs from a plain one.
struct Variant {
  bool bottlenecks = false;  // else a ResNet-20
  MemoryFormat format = MemoryFormat::contiguous;
  DType autocast = float32;
  std::string frozen = {};
  int accumulated = 1;
  bool retains = false, evaluates = false;
  std::function<void(Layer&)> change = [](Layer&) {};
};

// Makes two steps and returns losses, parameters, their gradients, buffers and the image's
// gradient.
StateDict run(const Variant& variant, bool recompute_output,
              const std::optional<ProcessGroup>& group = {}, std::int64_t images = samples) {
  Generator random(group ? 40 + group->rank() : 40);
  manual_seed(7);
  const std::shared_ptr<Layer> net = variant.bottlenecks ? bottlenecks() : resnet("resnet20");
  net->to(variant.format);
  if (!variant.frozen.empty()) freeze(*net, variant.frozen);
  if (group) convert_sync_batchnorm(*net, *group);
  if (recompute_output) set_recompute_output(*net);
  net->train(!variant.evaluates);
  variant.change(*net);
  std::optional<DataParallel> parallel;
  if (group) parallel.emplace(net->named_parameters(), net->named_buffers(), *group);
  optim::SGD sgd(net->parameters(), {.lr = 0.1, .momentum = 0.9});
  StateDict result;
  for (int step = 0; step < 2; ++step) {
    sgd.zero_grad();
    for (int part = 0; part < variant.accumulated; ++part) {
      const Tensor x =
          randn({images, 3, 16, 16}, {}, random).contiguous(variant.format).requires_grad_();
      Tensor loss;
      {
        const Autocast autocast(variant.autocast);
        loss = sum(sigmoid((*net)(x).to(float32)));  // of bounded gradients
      }
      loss.backward({}, variant.retains);
      if (variant.retains) loss.backward();
      result.emplace_back("loss", loss.detach());
      result.emplace_back("x.grad", x.grad());
    }
    for (const auto& [name, parameter] : net->named_parameters())
      if (parameter.grad().defined()) result.emplace_back(name + ".grad", parameter.grad().clone());
    sgd.step();
  }
  for (const auto& each : net->state_dict()) result.push_back(each);
  return result;
}

void expect_no_difference(const Variant& variant) {
  expect_equal_bits(run(variant, true), run(variant, false));
}

constexpr MemoryFormat last = MemoryFormat::channels_last;

TEST(RecomputeOutput, AStepHasTheSameBits) {
  expect_no_difference({});
  expect_no_difference({.format = last});
  expect_no_difference({.bottlenecks = true, .format = last});
  expect_no_difference({.bottlenecks = true});
}

TEST(RecomputeOutput, TogetherWithAutocastToo) {
  expect_no_difference({.autocast = bfloat16});
  expect_no_difference({.bottlenecks = true, .format = last, .autocast = bfloat16});
}

TEST(RecomputeOutput, WithFrozenLayersToo) {
  expect_no_difference({.frozen = "layer1.*"});
  expect_no_difference({.format = last, .frozen = "*.bn1.*"});
  expect_no_difference({.frozen = "conv1.*"});
}

TEST(RecomputeOutput, WithSeveralBackwardsToo) {
  expect_no_difference({.accumulated = 3});
  expect_no_difference({.retains = true});
}

TEST(RecomputeOutput, InEvaluationAndFoldedToo) {
  expect_no_difference({.evaluates = true});
  expect_no_difference({.evaluates = true, .change = [](Layer& net) { fold_batch_norm(net); }});
}

TEST(RecomputeOutput, OverRanksTooAlsoIfOneHasNoImages) {
  for (const std::int64_t images_of_last : {samples, std::int64_t{0}})
    distributed::run_ranks(2, [&](const ProcessGroup& group) {
      const std::int64_t images = group.rank() == 1 ? images_of_last : samples;
      const StateDict without = run({}, false, group, images);
      expect_equal_bits(run({}, true, group, images), without);
    });
}

TEST(RecomputeOutput, HooksAndOtherHoldersSeeTheSameAndKeepTheMemory) {
  std::vector<Tensor> seen;
  Variant variant;
  variant.change = [&](Layer& net) {
    net.child<BatchNorm2d>("bn1").add_forward_hook([&](Layer&, const Tensor&, const Tensor& y) {
      seen.push_back(y.detach());
      return Tensor();
    });
  };
  const StateDict with = run(variant, true);
  const std::vector<Tensor> seen_with = std::exchange(seen, {});
  expect_equal_bits(with, run(variant, false));
  ASSERT_EQ(seen_with.size(), seen.size());
  for (std::size_t i = 0; i < seen.size(); ++i)
    EXPECT_EQ(to_vector(seen_with[i]), to_vector(seen[i]));
}

// Returns the bytes that a forward keeps for its backward, and the most that is live, gradients
// aside, whenever a gradient has been computed.
struct Memory {
  double kept, peak;
};
Memory memory_of(const std::string& model, std::int64_t images, std::int64_t side, bool on) {
  const auto net = resnet(model, {.classes = 10});
  net->to(last);
  if (on) set_recompute_output(*net);
  const Tensor x = randn({images, 3, side, side}).contiguous(last);
  const auto live = [] { return static_cast<double>(allocator(Device::cpu()).stats().live); };
  double gradients = live(), peak = 0;
  for (const auto& [name, parameter] : net->named_parameters())
    autograd::add_leaf_hook(parameter, [&](Tensor& gradient) {
      gradients += static_cast<double>(gradient.storage()->bytes());
      peak = std::max(peak, live() - gradients);
    });
  const Tensor loss = sum((*net)(x));
  const double kept = live() - gradients;
  loss.backward();
  return {kept, std::max(kept, peak)};
}

TEST(RecomputeOutput, AboutHalfOfTheActivationsAreKept) {
  for (const auto& [model, images, side, share] :
       {std::tuple{"resnet20", 16, 32, 0.6}, std::tuple{"resnet50", 1, 96, 0.7}}) {
    const Memory with = memory_of(model, images, side, true),
                 without = memory_of(model, images, side, false);
    EXPECT_LT(with.kept, share * without.kept) << model;
    EXPECT_LT(with.peak, (share + 0.05) * without.peak) << model;
  }
}

TEST(RecomputeOutput, ChangesInPlaceAreErrors) {
  Sequential net;
  auto& norm = net.append<BatchNorm2d>({.channels = 4, .recompute_output = true});
  net.append<Conv2d>({.in = 4, .out = 4, .kernel = 3});
  const Tensor x = randn({2, 4, 8, 8}).requires_grad_();
  const auto error_after = [&](const std::function<void()>& change) -> std::string {
    const Tensor loss = sum(net(x * 1));
    {
      const NoGrad no_grad;
      change();
    }
    try {
      loss.backward();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_after([] {}), "");
  const std::string text = error_after([&] { norm.bias.fill_(2); });
  EXPECT_NE(text.find("from which the output of 'BatchNorm '0'' that it saved is computed again"),
            std::string::npos)
      << text;
}

TEST(RecomputeOutput, IsSetByPattern) {
  const auto net = resnet("resnet20");
  EXPECT_EQ(set_recompute_output(*net, "layer1.0.*"),
            (std::vector<std::string>{"layer1.0.bn1", "layer1.0.bn2"}));
  EXPECT_FALSE(net->bn1.options().recompute_output);
  EXPECT_NE(net->child("layer1").child("0").child("bn1").describe().find("recompute_output=true"),
            std::string::npos);
  EXPECT_THROW(set_recompute_output(*net, "layer9"), ValueError);
  set_recompute_output(*net, "*", false);
  EXPECT_EQ(net->child("layer1").child("0").child("bn1").describe().find("recompute_output"),
            std::string::npos);
}

}  // namespace
}  // namespace tutti
