// Tests the 16-bit copies of float32 weights that optimizers keep on CUDA devices: they never
// change a number, they save the casts of a step, and every other change of a weight is noticed.
#include "../test_device.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/autograd/node.h>
#include <tutti/core/create.h>
#include <tutti/core/cuda/graph.h>
#include <tutti/core/cuda/settings.h>
#include <tutti/kernels/rounded_weights.h>
#include <tutti/nn/conv.h>
#include <tutti/nn/flatten.h>
#include <tutti/nn/linear.h>
#include <tutti/nn/sequential.h>
#include <tutti/optim/adam.h>
#include <tutti/optim/exponential_moving_average.h>
#include <tutti/optim/lars.h>
#include <tutti/optim/sgd.h>

#include <gtest/gtest.h>

#include <memory>
#include <optional>

namespace tutti::rounded_weights_test {
namespace {

using kernels::rounded_weight;
using test::test_device;

Tensor parameter(const Shape& shape, std::uint64_t seed) {
  Generator random(seed);
  return randn(shape, {}, random).to(test_device()).requires_grad_();
}

void give_gradient(const Tensor& p, std::uint64_t seed) {
  Generator random(seed);
  p.set_grad(randn(p.shape(), {}, random).to(test_device()));
}

// Uses the weight in `dtype` between steps until the optimizer keeps a copy of it.
void keep_a_copy(const Tensor& p, optim::Optimizer& optimizer, DType dtype) {
  for (int i = 0; i < 3; ++i) {
    rounded_weight(p.detach(), dtype);
    give_gradient(p, static_cast<std::uint64_t>(i));
    optimizer.step();
  }
}

// Returns whether the weight has a current copy: two uses then get the same memory.
bool has_copy(const Tensor& p, DType dtype) {
  const Tensor first = rounded_weight(p.detach(), dtype),
               second = rounded_weight(p.detach(), dtype);
  EXPECT_EQ(to_vector(first), to_vector(p.detach().to(dtype)));
  return first.raw() == second.raw();
}

TEST(RoundedWeights, OptimizersKeepThemCurrent) {
  using Make = std::function<std::unique_ptr<optim::Optimizer>(const std::vector<Tensor>&)>;
  const std::vector<Make> methods{
      [](const auto& p) { return std::make_unique<optim::SGD>(p, optim::SGD::Options{.lr = 0.1}); },
      [](const auto& p) {
        return std::make_unique<optim::SGD>(p, optim::SGD::Options{.lr = 0.1, .momentum = 0.9});
      },
      [](const auto& p) {
        return std::make_unique<optim::Adam>(p, optim::Adam::Options{.lr = 0.1});
      },
      [](const auto& p) {
        return std::make_unique<optim::LARS>(p, optim::LARS::Options{.lr = 0.1});
      }};
  for (const Make& make : methods)
    for (const DType dtype : {bfloat16, float16}) {
      std::vector<Tensor> weights;  // more than one launch takes, some empty, odd and large ones
      for (int i = 0; i < 50; ++i)
        weights.push_back(parameter({i == 3   ? 0
                                     : i == 5 ? 20001
                                              : 1 + i},
                                    static_cast<std::uint64_t>(i)));
      const auto optimizer = make(weights);
      for (int step = 0; step < 3; ++step) {
        for (const Tensor& w : weights) {
          rounded_weight(w.detach(), dtype);
          give_gradient(w, static_cast<std::uint64_t>(100 * step + w.numel()));
        }
        optimizer->step();
        for (const Tensor& w : weights)
          if (w.numel() > 0) {
            EXPECT_EQ(has_copy(w, dtype), step > 0);
          }
      }
    }
}

TEST(RoundedWeights, OtherChangesAreNoticed) {
  const Tensor w = parameter({33, 7}, 1);
  optim::SGD sgd(std::vector<Tensor>{w}, {.lr = 0.1, .momentum = 0.9});
  const NoGrad no_grad;
  const Tensor other = randn({33, 7}).to(test_device());
  optim::ExponentialMovingAverage average({{"w", w}}, {}, 0.5);
  const std::vector<std::function<void()>> changes{
      [&] { w.mul_(3); },
      [&] { w.add_(other); },
      [&] { w.copy_(other); },
      [&] { w.zero_(); },
      [&] { w.slice(0, 5, 6).fill_(2); },
      [&] { average.exchange(); },
      [&] { w.set_data(other.clone()); },
      [&] { w.set_data(w.detach().transpose(0, 1).contiguous().transpose(0, 1)); }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    keep_a_copy(w, sgd, bfloat16);
    EXPECT_TRUE(has_copy(w, bfloat16));
    average.update();
    changes[i]();
    EXPECT_FALSE(has_copy(w, bfloat16));
    keep_a_copy(w, sgd, bfloat16);
    EXPECT_TRUE(has_copy(w, bfloat16)) << "the next steps make it current again";
  }
  keep_a_copy(w, sgd, float16);  // another dtype
  EXPECT_TRUE(has_copy(w, float16));
  EXPECT_FALSE(has_copy(w, bfloat16));
}

TEST(RoundedWeights, ASkippedStepLeavesThemAsTheyAre) {
  const Tensor w = parameter({33}, 2);
  optim::SGD sgd(std::vector<Tensor>{w}, {.lr = 0.1, .momentum = 0.9});
  const Tensor overflow = full({1}, 1, {.device = test_device()});
  keep_a_copy(w, sgd, bfloat16);
  for (const bool changed : {false, true}) {
    {
      const NoGrad no_grad;
      if (changed) w.mul_(3);
    }
    give_gradient(w, 9);
    sgd.step(overflow);
    EXPECT_TRUE(has_copy(w, bfloat16));  // compares the copy with the weight
  }
}

TEST(RoundedWeights, AViewOfPartOfAStorageHasNone) {
  const Tensor all = randn({40}).to(test_device());
  const Tensor w = all.slice(0, 3, 30).detach().requires_grad_();
  optim::SGD sgd(std::vector<Tensor>{w}, {.lr = 0.1});
  keep_a_copy(w, sgd, bfloat16);
  EXPECT_FALSE(has_copy(w, bfloat16));
}

// Convolution and linear layer under Autocast, with an optimizer, for tests of whole steps.
struct SmallNet {
  explicit SmallNet(std::uint64_t seed) {
    manual_seed(seed);
    net.append<nn::Conv2d>({.in = 3, .out = 4, .kernel = 3, .bias = false});
    net.append<nn::Conv2d>({.in = 4, .out = 5, .kernel = 1});
    net.append<nn::Flatten>();
    net.append<nn::Linear>({.in = 5 * 4 * 4, .out = 5});
    net.to(test_device(), float32, MemoryFormat::channels_last);
    sgd.emplace(net.parameters(), optim::SGD::Options{.lr = 0.1, .momentum = 0.9});
  }
  Tensor forward(const Tensor& x) {
    const Autocast autocast(dtype);
    return net(x);
  }
  void step(const Tensor& x) {
    sgd->zero_grad();
    const Tensor y = forward(x).to(float32);
    mean(y * y).backward();
    sgd->step();
  }

  DType dtype = bfloat16;
  nn::Sequential net;
  std::optional<optim::SGD> sgd;
  // Tests compare the bits of two nets, which cuDNN may otherwise give anew in each run.
  test::Switch deterministic{cuda::settings().deterministic};
};

Tensor images() {
  return randn({2, 3, 6, 6}).to(test_device()).contiguous(MemoryFormat::channels_last);
}

void expect_same(const SmallNet& a, const SmallNet& b) {
  const StateDict x = a.net.state_dict(), y = b.net.state_dict();
  for (std::size_t i = 0; i < x.size(); ++i)
    EXPECT_EQ(to_vector(x[i].second), to_vector(y[i].second)) << x[i].first;
}

// Marks every weight as changed, so that each forward rounds it.
void make_stale(SmallNet& net) {
  const NoGrad no_grad;
  for (const Tensor& p : net.net.parameters()) p.mul_(1);
}

TEST(RoundedWeights, StepsGiveTheSameBitsAsWithCasts) {
  for (const DType dtype : {bfloat16, float16}) {
    SmallNet kept(4), cast(4);
    kept.dtype = cast.dtype = dtype;
    for (int i = 0; i < 5; ++i) {
      const Tensor x = images();
      kept.step(x);
      make_stale(cast);
      cast.step(x);
    }
    expect_same(kept, cast);
  }
}

TEST(RoundedWeights, AStepHasNoCastsOfWeights) {
  SmallNet kept(5), cast(5);
  const Tensor x = images();
  for (int i = 0; i < 3; ++i) kept.step(x), cast.step(x);
  make_stale(cast);
  cuda::Graph with(test_device(), [&] { kept.step(x); });
  // Without copies the forward rounds three weights.
  cuda::Graph without(test_device(), [&] { cast.step(x); });
  EXPECT_EQ(with.size() + 3, without.size());
}

TEST(RoundedWeights, ReplaysSeeEveryChange) {
  SmallNet replayed(6), eager(6);
  const Tensor x = images();
  StateDict saved;
  for (const auto& [name, t] : eager.net.state_dict()) saved.emplace_back(name, t.clone());
  for (int i = 0; i < 3; ++i) replayed.step(x), eager.step(x);
  cuda::Graph graph(test_device(), [&] { replayed.step(x); });
  const std::vector<std::function<void(SmallNet&)>> changes{
      [&](SmallNet& each) { each.net.load_state_dict(saved); },
      [](SmallNet& each) {
        const NoGrad no_grad;
        for (const Tensor& p : each.net.parameters()) p.mul_(0.5);
      },
      [&](SmallNet& each) { each.step(x); },  // a step beside the graph
      [](SmallNet&) {}};
  for (const auto& change : changes) {
    change(replayed), change(eager);
    x.copy_(images());
    graph.replay(), eager.step(x);
    expect_same(replayed, eager);
    EXPECT_EQ(to_vector(replayed.forward(x)), to_vector(eager.forward(x)));
  }
}

// A capture enqueues what has not run yet when it ends.
TEST(RoundedWeights, ACaptureMakesNoCopyCurrent) {
  SmallNet net(9);
  const Tensor x = images(), w = net.net.parameters().front();
  for (int i = 0; i < 3; ++i) net.step(x);
  ASSERT_TRUE(has_copy(w, bfloat16));
  {
    const NoGrad no_grad;
    w.mul_(-2);
  }
  cuda::Graph graph(test_device(), [&] { net.step(x); });
  EXPECT_FALSE(has_copy(w, bfloat16));  // compares what a forward would use with the weight
  graph.replay();
  EXPECT_FALSE(has_copy(w, bfloat16));
  net.step(x);
  EXPECT_TRUE(has_copy(w, bfloat16));
}

// The graph may be captured before an optimizer has kept any copy.
TEST(RoundedWeights, AnEarlyGraphCountsItsChangesToo) {
  const Tensor w = parameter({50}, 7);
  optim::SGD sgd(std::vector<Tensor>{w}, {.lr = 0.1, .momentum = 0.9});
  const NoGrad no_grad;
  cuda::Graph changes(test_device(), [&] { w.mul_(0.75); });
  keep_a_copy(w, sgd, bfloat16);
  ASSERT_TRUE(has_copy(w, bfloat16));
  changes.replay();
  EXPECT_FALSE(has_copy(w, bfloat16));
}

// A graph that changes a weight counts as a change at each of its replays.
TEST(RoundedWeights, AChangeInsideOfAGraphIsNoticedAtEachReplay) {
  const Tensor w = parameter({50}, 7), seen = zeros({50}, {bfloat16, test_device()});
  optim::SGD sgd(std::vector<Tensor>{w}, {.lr = 0.1, .momentum = 0.9});
  keep_a_copy(w, sgd, bfloat16);
  ASSERT_TRUE(has_copy(w, bfloat16));
  const NoGrad no_grad;
  cuda::Graph reads(test_device(), [&] { seen.copy_(rounded_weight(w.detach(), bfloat16)); });
  cuda::Graph changes(test_device(), [&] { w.mul_(0.75); });
  for (int i = 0; i < 3; ++i) {
    changes.replay();
    EXPECT_FALSE(has_copy(w, bfloat16));
    reads.replay();
    EXPECT_EQ(to_vector(seen), to_vector(w.detach().to(bfloat16)));
    give_gradient(w, static_cast<std::uint64_t>(i));
    sgd.step();
    EXPECT_TRUE(has_copy(w, bfloat16));
  }
}

// The convolution's gradient arrives in 16 bits; what users see is float32.
TEST(RoundedWeights, GradientsAreFloat32ForEverybodyElse) {
  SmallNet net(8);
  const Tensor weight = net.net.parameters().front(), x = images();
  int calls = 0;
  const auto id = autograd::add_leaf_hook(weight, [&](Tensor& g) {
    EXPECT_EQ(g.dtype(), float32);
    ++calls;
  });
  net.step(x);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(weight.grad().dtype(), float32);
  const auto once = to_vector(weight.grad());
  EXPECT_EQ(once, to_vector(weight.grad().to(bfloat16))) << "it was rounded once";
  autograd::remove_leaf_hook(weight, id);

  // A weight that is used twice: the sum is that of two float32 tensors, which bfloat16 cannot
  // hold.
  const auto gradient = [&](int uses) {
    const Autocast autocast(bfloat16);
    weight.set_grad({});
    Tensor loss = sum(net.net.forward(x)).to(float32);
    if (uses == 2) loss = loss + 0.3 * sum(net.net.forward(x * 0.37)).to(float32);
    loss.backward();
    return weight.grad();
  };
  const Tensor twice = gradient(2);
  EXPECT_EQ(twice.dtype(), float32);
  EXPECT_NE(to_vector(twice), to_vector(twice.to(bfloat16)));
  // So is the sum of two backwards.
  const Tensor first = gradient(1).clone();
  sum(net.forward(x * 0.37)).to(float32).backward();
  EXPECT_EQ(weight.grad().dtype(), float32);
  EXPECT_NE(to_vector(weight.grad()), to_vector(first));
}

}  // namespace
}  // namespace tutti::rounded_weights_test
