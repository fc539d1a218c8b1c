// Tests of convert_sync_batchnorm: it changes the right layers, and nothing else.
#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>
#include <tutti/nn/layer_norm.h>
#include <tutti/nn/sequential.h>
#include <tutti/optim/sgd.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using namespace nn;
using distributed::run_ranks;
using Paths = std::vector<std::string>;

// A subclass of BatchNorm with its own forward, as a user may write it.
struct ScaledBatchNorm : BatchNorm2d {
  using BatchNorm2d::BatchNorm2d;
  Tensor forward(const Tensor& x) override { return BatchNorm2d::forward(x) * 2; }
};

struct NormBlock : Module {
  BatchNorm2d& bn = add<BatchNorm2d>("bn", {.channels = 3, .eps = 1e-3, .momentum = 0.4});
  ScaledBatchNorm& own = add<ScaledBatchNorm>("own", {.channels = 3, .affine = false});
};

struct ReusingNet : Module {
  BatchNorm1d& head = add<BatchNorm1d>("head", {.channels = 2, .dtype = float64});
  NormBlock& block = add<NormBlock>("block");
  std::shared_ptr<BatchNorm3d> shared =
      std::make_shared<BatchNorm3d>(BatchNorm3d::Options{.channels = 5, .momentum = {}});
  BatchNorm3d& once = add_child("once", shared);
  BatchNorm3d& twice = add_child("twice", shared);
};

TEST(Convert, AttachesInPlaceAndReturnsThePaths) {
  run_ranks(2, [](const ProcessGroup& group) {
    ReusingNet net;
    const StateDict before = net.state_dict();
    const auto parameters = net.parameters();
    EXPECT_EQ(convert_sync_batchnorm(net, group), (Paths{"head", "block.bn", "block.own", "once"}));
    EXPECT_TRUE(*net.block.bn.process_group() == group);
    EXPECT_TRUE(*net.twice.process_group() == group) << "a shared layer stays shared";
    const StateDict after = net.state_dict();
    ASSERT_EQ(after.size(), before.size());
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_EQ(after[i].first, before[i].first);
      EXPECT_EQ(after[i].second.raw(), before[i].second.raw());
    }
    for (std::size_t i = 0; i < parameters.size(); ++i)
      EXPECT_TRUE(net.parameters()[i].is_same(parameters[i]));
    EXPECT_EQ(convert_sync_batchnorm(net, group), Paths{}) << "nothing is converted twice";
  });
}

TEST(Convert, KeepsOptionsFlagsAndDtypes) {
  run_ranks(2, [](const ProcessGroup& group) {
    ReusingNet net;
    net.block.eval();
    net.block.bn.weight.requires_grad_(false);
    convert_sync_batchnorm(net, group);
    EXPECT_EQ(net.block.bn.options().eps, 1e-3);
    EXPECT_EQ(net.block.bn.options().momentum, 0.4);
    EXPECT_FALSE(net.once.options().momentum);
    EXPECT_FALSE(net.block.own.weight.defined());
    EXPECT_FALSE(net.block.bn.is_training());
    EXPECT_TRUE(net.head.is_training());
    EXPECT_FALSE(net.block.bn.weight.requires_grad());
    EXPECT_EQ(net.head.running_var.dtype(), float64);
  });
}

TEST(Convert, KeepsHooksAndSubclassesWithTheirOwnForward) {
  run_ranks(2, [](const ProcessGroup& group) {
    ReusingNet net;
    int hooked = 0;
    net.block.own.add_forward_hook(
        [&](Layer&, const Tensor&, const Tensor&) { return ++hooked, Tensor(); });
    convert_sync_batchnorm(net, group);
    // Each rank has one element per channel. Normalised over both ranks they are -1 and 1.
    const Tensor x = full({1, 3, 1, 1}, group.rank());
    const Tensor y = net.block.own(x);
    EXPECT_NEAR(y.data<float>()[0], group.rank() == 0 ? -2 : 2, 1e-3);
    EXPECT_EQ(hooked, 1);
    EXPECT_NE(net.to_string().find("ScaledBatchNorm"), std::string::npos);
  });
}

TEST(Convert, AnOptimizerMadeBeforeStaysValid) {
  run_ranks(2, [](const ProcessGroup& group) {
    BatchNorm1d layer({.channels = 2, .dtype = float64});
    optim::SGD sgd(layer.parameters(), {.lr = 0.5});
    convert_sync_batchnorm(layer, group);
    const Tensor x = full({1, 2}, group.rank(), {float64});
    sum(layer(x)).backward();
    sgd.step();
    EXPECT_NEAR(layer.bias.data<double>()[0], -0.5, 1e-12);
  });
}

TEST(Convert, TheModuleMayItselfBeABatchNorm) {
  run_ranks(2, [](const ProcessGroup& group) {
    BatchNorm layer({.channels = 2});
    EXPECT_EQ(convert_sync_batchnorm(layer, group), Paths{""});
    EXPECT_EQ(layer.process_group()->size(), 2);
  });
}

TEST(Convert, AFilterLeavesLayersOut) {
  run_ranks(2, [](const ProcessGroup& group) {
    ReusingNet net;
    const auto filter = [](const std::string& path, const BatchNorm& layer) {
      return path != "head" && layer.options().affine;
    };
    EXPECT_EQ(convert_sync_batchnorm(net, group, filter), (Paths{"block.bn", "once"}));
    EXPECT_FALSE(net.head.process_group());
  });
}

TEST(Convert, DefaultsToTheWorldAndLeavesOtherGroupsAlone) {
  run_ranks(2, [](const ProcessGroup& group) {
    const ProcessGroup alone = group.split(group.rank());
    struct Two : Module {
      explicit Two(const ProcessGroup& g)
          : chosen(
                add<SyncBatchNorm>("chosen", SyncBatchNorm::Options{.channels = 2, .group = g})) {}
      SyncBatchNorm& chosen;
      BatchNorm& plain = add<BatchNorm>("plain", {.channels = 2});
    } net(alone);
    EXPECT_EQ(convert_sync_batchnorm(net), Paths{"plain"});
    EXPECT_TRUE(*net.chosen.process_group() == alone);
    EXPECT_TRUE(*net.plain.process_group() == group);
  });
}

TEST(Convert, OtherNormalisationsStayAsTheyAre) {
  run_ranks(2, [](const ProcessGroup& group) {
    struct Mixed : Module {
      LayerNorm& layer = add<LayerNorm>("layer", {.shape = {3}});
      BatchNorm& batch = add<BatchNorm>("batch", {.channels = 3});
    } net;
    const Tensor x = randn({4, 3});
    const auto before = to_vector(net.layer(x));
    EXPECT_EQ(convert_sync_batchnorm(net, group), Paths{"batch"});
    EXPECT_EQ(to_vector(net.layer(x)), before);
    EXPECT_EQ(group.for_normalization().traffic().calls, 0);
  });
}

TEST(Convert, TheModuleSaysWithWhomItIsSynchronised) {
  run_ranks(3, [](const ProcessGroup& group) {
    ReusingNet net;
    const std::string before = net.to_string();
    EXPECT_EQ(before.find("sync="), std::string::npos);
    convert_sync_batchnorm(net, group);
    const std::string line = "bn: BatchNorm2d(3, eps=0.001, momentum=0.4, sync=3 ranks)";
    EXPECT_NE(net.to_string().find(line), std::string::npos) << net.to_string();
  });
}

// A state dict with every buffer moves from a plain layer to a synchronised one and back, under
// PyTorch's names.
TEST(Convert, StateMovesBetweenBothKinds) {
  run_ranks(2, [](const ProcessGroup& group) {
    Generator random(19);
    BatchNorm plain({.channels = 3}), back({.channels = 3});
    SyncBatchNorm synchronised({.channels = 3});
    const NoGrad no_grad;
    plain.weight.copy_(randn({3}, {}, random)), plain.bias.copy_(randn({3}, {}, random));
    plain(randn({4, 3}, {}, random)), plain(randn({4, 3}, {}, random));
    std::vector<std::string> names;
    for (const auto& [name, tensor] : synchronised.state_dict()) names.push_back(name);
    EXPECT_EQ(names, (std::vector<std::string>{"weight", "bias", "running_mean", "running_var",
                                               "num_batches_tracked"}));
    synchronised.load_state_dict(plain.state_dict());
    back.load_state_dict(synchronised.state_dict());
    const StateDict expected = plain.state_dict(), got = synchronised.state_dict(),
                    again = back.state_dict();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(to_vector(got[i].second), to_vector(expected[i].second)) << expected[i].first;
      EXPECT_EQ(to_vector(again[i].second), to_vector(expected[i].second)) << expected[i].first;
      EXPECT_EQ(got[i].second.dtype(), expected[i].second.dtype());
    }
    EXPECT_EQ(synchronised.num_batches_tracked.item<int>(), 2);
    synchronised.eval(), plain.eval();
    const Tensor x = randn({4, 3}, {}, random);
    EXPECT_EQ(to_vector(synchronised(x)), to_vector(plain(x)));
    EXPECT_EQ(group.for_normalization().traffic().calls, 0);
  });
}

}  // namespace
}  // namespace tutti
