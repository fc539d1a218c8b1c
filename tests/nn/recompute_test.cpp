// recompute() around layers: what changes a layer between forward and backward is an error that
// names the layer, or changes nothing.
#include "distributed/recompute_case.h"

#include <tutti/autograd/grad_mode.h>
#include <tutti/nn/drop_path.h>
#include <tutti/nn/dropout.h>
#include <tutti/nn/embedding.h>
#include <tutti/nn/freeze.h>
#include <tutti/nn/instance_norm.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/sequential.h>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using namespace nn;

// Returns what backward throws if `change` comes between it and the forward of recompute().
std::string error_after(Layer& layer, const Tensor& x, const std::function<void()>& change) {
  const Tensor y = recompute([&](const std::vector<Tensor>& in) { return layer(in[0]); }, {x});
  change();
  try {
    sum(y).backward();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

Tensor values(const Shape& shape) {
  Generator generator(3);
  return randn(shape, {}, generator).requires_grad_();
}

TEST(RecomputeLayers, AModeThatChangesInBetweenIsAnErrorOfTheLayer) {
  Sequential net;
  net.append<Linear>({.in = 4, .out = 4});
  net.append<BatchNorm>({.channels = 4});
  net.append<Dropout>();
  net.append<DropPath>({.p = 0.5});
  const auto error = [&](const std::string& layer, bool trains) {
    net.train(trains);
    return error_after(net, values({6, 4}), [&] { net.child(layer).train(!trains); });
  };
  EXPECT_EQ(error("1", true),
            "recompute: the second run of the function is at BatchNorm '1' in evaluation where the "
            "first one was at BatchNorm '1' in training; the function must do the same both times");
  for (const std::string layer : {"1", "2", "3"})
    for (const bool trains : {true, false}) {
      const std::string text = error(layer, trains);
      EXPECT_NE(text.find("'" + layer + "' in " + (trains ? "evaluation" : "training") + " where"),
                std::string::npos)
          << text;
    }
  EXPECT_EQ(error("0", true), "") << "A Linear has no mode.";
  net.train();
  EXPECT_EQ(error_after(net, values({6, 4}), [&] { net.eval(), net.train(); }), "");
}

TEST(RecomputeLayers, AModeThatTheFunctionItselfSwitchesIsTheSameBothTimes) {
  const auto run = [](bool recomputes) {
    BatchNorm layer({.channels = 4});
    const auto fn = [&](const std::vector<Tensor>& in) {
      const Tensor y = layer(in[0]);
      layer.eval();
      const Tensor z = layer(in[0]);
      layer.train();
      return y * z;
    };
    const Tensor x = values({6, 4});
    sum(recomputes ? recompute(fn, {x}) : fn({x})).backward();
    return std::vector{to_vector(x.grad()), to_vector(layer.weight.grad())};
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(RecomputeLayers, AFrozenLayerIsAnError) {
  BatchNorm layer({.channels = 4}), without_weight({.channels = 4, .affine = false});
  EXPECT_NE(error_after(layer, values({6, 4}), [&] { layer.freeze(); }), "");
  const std::string left =
      error_after(without_weight, values({6, 4}), [&] { without_weight.freeze(); });
  EXPECT_NE(left.find("leaves a saved result of BatchNorm;"), std::string::npos) << left;
  without_weight.freeze(false);
  without_weight.eval();
  without_weight.freeze();
  EXPECT_NE(error_after(without_weight, values({6, 4}),
                        [&] { without_weight.train(), without_weight.freeze(false); }),
            "");
}

TEST(RecomputeLayers, AChangedParameterIsAnErrorOfItsLayer) {
  Sequential net;
  net.append<Linear>({.in = 4, .out = 4});
  net.append<Linear>({.in = 4, .out = 3});
  const std::string text = error_after(net, values({6, 4}), [&] {
    const NoGrad no_grad;
    net.child<Linear>("1").bias.fill_(1);
  });
  EXPECT_EQ(text,
            "Linear '1': recompute: the second run of the function reads a tensor of shape (3,) "
            "that was changed in place since the first one; the function must do the same both "
            "times");
  EXPECT_NE(error_after(net, values({6, 4}), [&] { net.to(float64); }), "");
  Embedding table({.count = 5, .dim = 2});
  const Tensor indices = tensor({0, 4}, {int64});
  EXPECT_EQ(error_after(table, indices, [] {}), "");
  EXPECT_NE(error_after(table, indices,
                        [&] {
                          const NoGrad no_grad;
                          table.weight.mul_(2);
                        })
                .find("was changed in place"),
            std::string::npos);
}

TEST(RecomputeLayers, InstanceNormMovesItsStatisticsOnce) {
  const auto run = [](bool recomputes) {
    InstanceNorm1d layer({.channels = 3, .affine = true, .track_running_stats = true});
    const Tensor x = values({4, 3, 5});
    const auto fn = [&](const std::vector<Tensor>& in) { return layer(in[0]) * in[0]; };
    const Tensor y = recomputes ? recompute(fn, {x}) : fn({x});
    layer(x * 2);
    sum(y).backward();
    return std::vector{to_vector(x.grad()), to_vector(layer.weight.grad()),
                       to_vector(layer.running_mean), to_vector(layer.running_var)};
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(RecomputeLayers, SyncBatchNormOnRanks) {
  for (const int ranks : {1, 2, 3})
    distributed::run_ranks(ranks, test::check_recomputed_sync_batch_norm);
}

}  // namespace
}  // namespace tutti
