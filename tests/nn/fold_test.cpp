// Tests of fold_batch_norm(): the folded model computes what the original one does in evaluation,
// and what cannot be folded exactly is left alone.
#include "distributed/messages.h"
#include "kernels/compare.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/nn/activation.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/fold.h>
#include <tutti/nn/batch_norm/recompute_statistics.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>
#include <tutti/nn/conv_transpose.h>
#include <tutti/nn/models/resnet.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace tutti {
namespace {

using nn::fold_batch_norm;
using test::expect_contains;
using test::message_of;
using test::relative_error;
using Paths = std::vector<std::string>;

// Gives every parameter and statistic a value of its own, because an initial one hides mistakes.
void randomize(nn::Module& module) {
  const NoGrad no_grad;
  module.apply([](nn::Module& each) {
    auto* layer = dynamic_cast<nn::BatchNorm*>(&each);
    if (!layer) return;
    if (layer->weight.defined()) layer->weight.copy_(randn(layer->weight.shape()) * 0.3 + 1);
    if (layer->bias.defined()) layer->bias.copy_(randn(layer->bias.shape()));
    if (!layer->running_mean.defined()) return;
    layer->running_mean.copy_(randn(layer->running_mean.shape()));
    layer->running_var.copy_(rand(layer->running_var.shape()) + 0.5);
  });
}

// Folds an evaluated model and checks that its output stays the same.
Paths fold_and_compare(nn::Layer& model, const Tensor& x, double tolerance) {
  const NoGrad no_grad;
  model.eval();
  const Tensor expected = model(x);
  Paths folded = fold_batch_norm(model).folded;
  EXPECT_LT(relative_error(model(x), expected), tolerance);
  return folded;
}

TEST(Fold, AResNetComputesTheSameWithoutItsNormalisations) {
  const auto net = nn::resnet("resnet20", {.classes = 4});
  randomize(*net);
  net->to(float64);
  const Paths folded = fold_and_compare(*net, randn({2, 3, 8, 8}, {float64}), 1e-12);
  EXPECT_EQ(folded.size(), 19u) << "every layer of the network";
  for (const auto& [path, tensor] : net->state_dict())
    EXPECT_EQ(path.find("running"), std::string::npos) << path;
  const nn::FoldedBatchNorm again = fold_batch_norm(*net);
  EXPECT_TRUE(again.folded.empty() && again.left.empty()) << "nothing is left to fold";
}

// A block of one's own, as people write it who have not heard of consecutive_children().
struct OwnBlock : nn::Layer {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in = 4, .out = 4, .kernel = 1});
  nn::BatchNorm2d& bn = add<nn::BatchNorm2d>("bn", {.channels = 4});
  Tensor forward(const Tensor& x) override { return bn(conv(x)); }
};

TEST(Fold, SaysHowManyOfHowManyWereFoldedAndWhichAreLeft) {
  nn::Sequential net;
  net.append<nn::Conv2d>({.in = 3, .out = 4, .kernel = 1});
  net.append<nn::BatchNorm2d>({.channels = 4});
  net.append<OwnBlock>();
  net.append<nn::Conv2d>({.in = 4, .out = 4, .kernel = 1});
  net.append<nn::BatchNorm2d>({.channels = 4, .track_running_stats = false});
  randomize(net);
  net.eval();
  nn::FoldedBatchNorm result = fold_batch_norm(net);
  EXPECT_EQ(result.folded, Paths{"1"});
  EXPECT_EQ(result.left, (Paths{"2.bn", "4"}));
  EXPECT_EQ(result.undeclared, Paths{"2.bn"});
  EXPECT_EQ(result.to_string(),
            "1 of 3 BatchNorm layers are folded; left: '2.bn', '4'; 1 of these are in no "
            "consecutive_children() of the module above them");
  EXPECT_EQ(fold_batch_norm(net).to_string(),
            "0 of 2 BatchNorm layers are folded; left: '2.bn', '4'; 1 of these are in no "
            "consecutive_children() of the module above them");
  result = {.folded = Paths(9, "x")};
  EXPECT_EQ(result.to_string(), "9 of 9 BatchNorm layers are folded");
}

TEST(Fold, ABottleneckWithAProjection) {
  nn::Bottleneck block({.in = 3, .width = 2, .stride = 2});
  randomize(block);
  block.to(float64);
  EXPECT_EQ(fold_and_compare(block, randn({2, 3, 5, 5}, {float64}), 1e-13),
            (Paths{"bn1", "bn2", "bn3", "downsample.1"}));
}

TEST(Fold, KeepsMemoryFormatAndRoundsOnce) {
  nn::Sequential net;
  auto& conv = net.append<nn::Conv2d>({.in = 3, .out = 8, .kernel = 3, .bias = false});
  net.append<nn::BatchNorm2d>({.channels = 8});
  randomize(net);
  net.to(MemoryFormat::channels_last);
  const Tensor x = randn({2, 3, 7, 6}).contiguous(MemoryFormat::channels_last);
  EXPECT_EQ(fold_and_compare(net, x, 1e-6), Paths{"1"});
  EXPECT_TRUE(conv.weight.is_contiguous(MemoryFormat::channels_last));
  EXPECT_TRUE(conv.bias.requires_grad());
  EXPECT_EQ(net.state_dict().size(), 2u) << "0.weight and 0.bias";
}

// Every form of a pair: with and without bias, affine parameters and groups, eps as a floor,
// statistics of sync layers, layers over 1 to 3 dimensions, and Linear.
TEST(Fold, EveryKindOfLayerBeforeIt) {
  nn::Sequential lines, volumes, vectors;
  lines.append<nn::Conv1d>({.in = 4, .out = 6, .kernel = 3, .groups = 2});
  lines.append<nn::BatchNorm1d>({.channels = 6, .eps = 0.9, .eps_is_floor = true});
  lines.append<nn::ReLU>();
  lines.append<nn::Conv1d>({.in = 6, .out = 3, .kernel = 1, .bias = false});
  lines.append<nn::BatchNorm>({.channels = 3, .bias = false});
  volumes.append<nn::Conv3d>({.in = 2, .out = 3, .kernel = 2});
  volumes.append<nn::BatchNorm3d>({.channels = 3, .affine = false});
  vectors.append<nn::Linear>({.in = 5, .out = 4});
  vectors.append<nn::BatchNorm1d>({.channels = 4, .pooled = true});
  vectors.append<nn::Linear>({.in = 4, .out = 4, .bias = false});
  vectors.append<nn::SyncBatchNorm>({.channels = 4, .group = ProcessGroup()}).freeze();
  const auto check = [](nn::Layer& model, const Shape& shape, const Paths& expected) {
    randomize(model);
    model.to(float64);
    EXPECT_EQ(fold_and_compare(model, randn(shape, {float64}), 1e-13), expected);
  };
  check(lines, {3, 4, 9}, {"1", "4"});
  check(volumes, {2, 2, 4, 3, 5}, {"1"});
  check(vectors, {6, 5}, {"1", "3"});
}

TEST(Fold, TransposedConvolutionsWithGroups) {
  for (const std::int64_t groups : {1, 2}) {
    nn::Sequential lines, images;
    lines.append<nn::ConvTranspose1d>({.in = 4, .out = 6, .kernel = 3, .groups = groups});
    lines.append<nn::BatchNorm1d>({.channels = 6});
    auto& conv = images.append<nn::ConvTranspose2d>(
        {.in = 4, .out = 6, .kernel = 2, .stride = 2, .groups = groups, .bias = false});
    images.append<nn::BatchNorm2d>({.channels = 6});
    images.to(MemoryFormat::channels_last);
    for (nn::Layer* net : {&lines, &images}) randomize(*net), net->to(float64);
    EXPECT_EQ(fold_and_compare(lines, randn({3, 4, 5}, {float64}), 1e-13), Paths{"1"});
    EXPECT_EQ(fold_and_compare(images, randn({2, 4, 3, 5}, {float64}), 1e-13), Paths{"1"});
    EXPECT_TRUE(conv.weight.is_contiguous(MemoryFormat::channels_last));
  }
}

TEST(Fold, LeavesWhatItCannotFoldExactly) {
  struct OwnLinear : nn::Linear {
    using Linear::Linear;
  };
  const auto shared = std::make_shared<nn::Linear>(nn::Linear::Options{.in = 4, .out = 4});
  nn::Sequential net;
  const auto pair = [&]<class T>(T& before, nn::BatchNorm::Options options = {}) -> T& {
    options.channels = 4;
    net.append<nn::BatchNorm1d>(options);
    return before;
  };
  const nn::Linear::Options same{.in = 4, .out = 4};
  pair(net.append<nn::Linear>(same), {.track_running_stats = false});
  pair(net.append<OwnLinear>(same));
  pair(net.append<nn::Linear>(same)).add_forward_hook([](auto&, auto&, auto&) { return Tensor(); });
  pair(net.add_child("shared", shared));
  pair(net.add_child("again", shared));
  net.append<nn::ReLU>();
  pair(net.append<nn::ReLU>());
  auto& tied = pair(net.append<nn::Linear>(same));
  net.append<nn::Linear>(same).weight.set_data(tied.weight);
  const auto norm = std::make_shared<nn::BatchNorm1d>(nn::BatchNorm::Options{.channels = 4});
  for (const char* name : {"norm", "same_norm"}) {
    net.append<nn::Linear>(same);
    net.add_child(name, norm);
  }
  randomize(net);
  EXPECT_EQ(fold_and_compare(net, randn({3, 4}), 1e-7), Paths{});
}

// A module that derives from Sequential may have a forward of its own, so it has to say that its
// children still run one after the other.
TEST(Fold, AModuleDeclaresItsPairs) {
  struct Silent : nn::Sequential {
    Silent() {
      append<nn::Linear>({.in = 3, .out = 3});
      append<nn::BatchNorm1d>({.channels = 3});
    }
  };
  struct Declared : Silent {
    std::vector<ConsecutiveChildren> consecutive_children() const override { return neighbours(); }
  };
  struct Wrong : Silent {
    std::vector<ConsecutiveChildren> consecutive_children() const override {
      return {{"0", "norm"}};
    }
  };
  Silent silent;
  Declared declared;
  Wrong wrong;
  EXPECT_EQ(fold_and_compare(silent, randn({2, 3}), 1e-7), Paths{});
  EXPECT_EQ(fold_and_compare(declared, randn({2, 3}), 1e-6), Paths{"1"});
  expect_contains(message_of<ValueError>([&] { fold_batch_norm(wrong); }),
                  {"consecutive_children", "'norm'"});
}

// Another forward() may not run the normalisation on the output of the convolution.
TEST(Fold, ClassesDerivedFromResNetsDeclareNoPairs) {
  struct Activated : nn::BasicBlock {
    using BasicBlock::BasicBlock;
    Tensor forward(const Tensor& x) override { return bn2(conv2(bn1(relu(conv1(x))))) + x; }
  };
  struct Narrow : nn::Bottleneck {
    using Bottleneck::Bottleneck;
    Tensor forward(const Tensor& x) override { return bn1(relu(conv1(x))); }
  };
  struct Shortcut : nn::Projection {
    using Projection::Projection;
    Tensor forward(const Tensor& x) override { return bn(relu(conv(x))); }
  };
  struct Features : nn::ResNet {
    using ResNet::ResNet;
    Tensor forward(const Tensor& x) override { return bn1(relu(conv1(x))); }
  };
  Activated block({.in = 6, .out = 6});
  Narrow narrow({.in = 6, .width = 6});
  Shortcut shortcut({.in = 6, .out = 6});
  Features features({.depth = 20, .channels = 6});
  for (nn::Layer* layer : std::vector<nn::Layer*>{&block, &narrow, &shortcut, &features}) {
    randomize(*layer);
    const Paths folded = fold_and_compare(*layer, randn({2, 6, 5, 5}), 1e-5);
    EXPECT_EQ(std::ranges::count(folded, "bn1"), 0);
  }
}

TEST(Fold, AFoldedLayerRefusesTraining) {
  nn::Sequential net;
  net.append<nn::Linear>({.in = 3, .out = 3});
  auto& layer = net.append<nn::BatchNorm1d>({.channels = 3});
  const StateDict before = net.state_dict();
  const auto weight = to_vector(before[0].second);
  randomize(net);
  fold_batch_norm(net);
  EXPECT_EQ(to_vector(before[0].second), weight) << "states that were taken before stay";
  EXPECT_NE(net.to_string().find("folded"), std::string::npos);
  expect_contains(message_of<Error>([&] {
                    net(randn({2, 3}));
                  }),
                  {"BatchNorm '1'", "folded", "eval()"});
  layer.freeze();
  EXPECT_NO_THROW(net(randn({2, 3}))) << "a frozen layer does the same in training";
  EXPECT_THROW(net(randn({2, 3, 3})), ShapeError)
      << "dimension 1 is not the one of the Linear's features";
  EXPECT_THROW(net.load_state_dict(before), CheckpointError);
  EXPECT_TRUE(nn::recompute_statistics(net, [&] { net(randn({2, 3})); }).empty());
}

// The projection's layers then exchange nothing, together or alone.
TEST(Fold, SynchronisedBlocksEvaluateTheSame) {
  distributed::run_ranks(
      2,
      [](const ProcessGroup& group) {
        nn::BasicBlock block({.in = 3, .out = 4, .stride = 2});
        manual_seed(5);
        randomize(block);
        block.to(float64);
        nn::convert_sync_batchnorm(block, group);
        const std::int64_t samples = 1 + group.rank();
        EXPECT_EQ(fold_and_compare(block, randn({samples, 3, 5, 5}, {float64}), 1e-13).size(), 3u);
        EXPECT_EQ(group.for_normalization().traffic().calls, 0u);
      },
      std::chrono::seconds(20));
}

}  // namespace
}  // namespace tutti
