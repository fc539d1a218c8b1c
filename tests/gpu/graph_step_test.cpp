// Tests training steps that are replayed from a CUDA graph: values that the host computes in every
// step (learning rates, random numbers, loss scales) are those of the replay, not of the capture.
#include "../distributed/messages.h"
#include "../optim/amsgrad.h"
#include "../test_device.h"
#include "captured_step.h"

#include <tutti/core/cuda/runtime.h>
#include <tutti/distributed/backends/nccl/nccl.h>
#include <tutti/distributed/launch/launch.h>
#include <tutti/optim/adam.h>
#include <tutti/optim/lars.h>
#include <tutti/optim/sgd.h>

#include <gtest/gtest.h>

namespace tutti::graph_step_test {
namespace {

using test::captured_steps;
using test::expect_contains;
using test::message_of;
using test::never;
using test::StepCase;
using test::test_device;
using test::train_captured;

TensorOptions there() { return {float32, test_device()}; }

template <class Method>
StepCase with(typename Method::Options options) {
  return {.optimizer = [=](const std::vector<Tensor>& parameters) {
    return std::make_unique<Method>(parameters, options);
  }};
}

void expect_same_bits(const StepCase& c) {
  const auto eager = train_captured(c, test_device(), {}, never);
  for (const int from : {2, 5})
    EXPECT_EQ(train_captured(c, test_device(), {}, from), eager) << "captured before step " << from;
}

TEST(GraphStep, EveryOptimizerTakesTheStepsItTakesWithoutAGraph) {
  {
    SCOPED_TRACE("SGD");
    expect_same_bits(
        with<optim::SGD>({.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-3, .nesterov = true}));
  }
  {
    SCOPED_TRACE("Adam");
    expect_same_bits(with<optim::Adam>({.lr = 0.01, .weight_decay = 1e-3}));
  }
  {
    SCOPED_TRACE("AdamW");
    expect_same_bits(with<optim::AdamW>({.lr = 0.01}));
  }
  {
    SCOPED_TRACE("an optimizer in tensor arithmetic");
    expect_same_bits(with<Amsgrad>({.lr = 0.01}));
  }
  {
    SCOPED_TRACE("LARS");
    expect_same_bits(with<optim::LARS>({.lr = 1, .weight_decay = 1e-3, .trust_coefficient = 0.1}));
  }
}

TEST(GraphStep, WithClipping) {
  StepCase c = with<optim::AdamW>({.lr = 0.01});
  c.clip = 0.5;
  expect_same_bits(c);
}

TEST(GraphStep, WithDropoutThatDrawsOnWhereItWas) {
  StepCase c = with<optim::SGD>({.lr = 0.1, .momentum = 0.9});
  c.dropout = 0.4;
  expect_same_bits(c);
}

TEST(GraphStep, WithOutputsOfBatchNormThatAreComputedAgain) {
  StepCase c = with<optim::SGD>({.lr = 0.1, .momentum = 0.9});
  const auto kept = train_captured(c, test_device(), {}, never);
  c.recompute_output = true;
  EXPECT_EQ(train_captured(c, test_device(), {}, never), kept);
  expect_same_bits(c);
}

TEST(GraphStep, WithStepsThatLossScalingSkips) {
  for (StepCase c : {with<optim::Adam>({.lr = 0.01}), with<Amsgrad>({.lr = 0.01}),
                     with<optim::SGD>({.lr = 0.1, .momentum = 0.9})}) {
    c.scaled = true;
    expect_same_bits(c);
  }
}

TEST(GraphStep, RandomNumbersAreTheGeneratorsNext) {
  manual_seed(3);
  Tensor first, second;
  cuda::Graph graph(test_device(), [&] {
    first = bernoulli(0.5, {101}, there());
    second = bernoulli(0.25, {2, 50}, there());
  });
  EXPECT_EQ(default_generator().state().position, 0u) << "nothing is drawn yet";
  const auto expect_next = [&] {
    Generator same(0);
    same.set_state(default_generator().state());
    const std::int64_t waits = cuda::synchronizations();
    graph.replay();
    EXPECT_EQ(cuda::synchronizations(), waits);
    EXPECT_EQ(to_vector(first), to_vector(bernoulli(0.5, {101}, {}, same)));
    EXPECT_EQ(to_vector(second), to_vector(bernoulli(0.25, {2, 50}, {}, same)));
    EXPECT_EQ(default_generator().state(), same.state());
  };
  for (int i = 0; i < 3; ++i) expect_next();
  bernoulli(0.5, {7}, there());
  expect_next();
  manual_seed(9);
  expect_next();
}

TEST(GraphStep, SaysWhatIsMissingBeforeAndLostAfter) {
  const Tensor p = ones({5}, there()).requires_grad_();
  p.set_grad(ones({5}, there()));
  const auto as_nothing_happened = [&](optim::Optimizer& optimizer) {
    EXPECT_EQ(to_vector(p), std::vector<double>(5, 1.0));
    EXPECT_EQ(optimizer.state_dict().tensors.front().second.select(0, 0).item<int>(), 0) << "steps";
  };
  optim::Adam adam({p}, {.lr = 0.5});
  expect_contains(message_of<DeviceError>(
                      [&] { const cuda::Graph graph(test_device(), [&] { adam.step(); }); }),
                  {"Adam", "parameter 0 of shape (5,)", "run a step without a graph before"});
  as_nothing_happened(adam);
  optim::GradScaler scaler({.init_scale = 4});
  static_cast<void>(scaler.scale(ones({}, there())));  // moves the scale to the device
  EXPECT_THROW(cuda::Graph(test_device(), [&] { scaler.step(adam); }), DeviceError);
  as_nothing_happened(adam);
  optim::SGD plain({p}, {.lr = 0.5});  // has a count alone
  EXPECT_THROW(cuda::Graph(test_device(), [&] { plain.step(); }), DeviceError);
  as_nothing_happened(plain);
  plain.step();
  cuda::Graph graph(test_device(), [&] { plain.step(); });
  EXPECT_EQ(to_vector(p), std::vector<double>(5, 0.5));
  graph.replay();
  EXPECT_EQ(to_vector(p), std::vector<double>(5, 0));
  EXPECT_EQ(plain.state_dict().tensors.front().second.select(0, 0).item<int>(), 2);
  plain.set_momentum(0.9);
  expect_contains(message_of<DeviceError>([&] { graph.replay(); }),
                  {"SGD", "momentum turned on", "capture the step again"});

  p.set_grad(ones({5}, there()));
  scaler.step(adam);
  EXPECT_EQ(to_vector(p.grad()), std::vector<double>(5, 0.25))
      << "the refused step has not unscaled it";
  cuda::Graph second(test_device(), [&] { adam.step(); });
  second.replay();
  adam.load_state_dict(adam.state_dict());
  const auto before = to_vector(p);
  expect_contains(message_of<DeviceError>([&] { second.replay(); }),
                  {"Adam", "load_state_dict", "capture the step again"});
  EXPECT_EQ(to_vector(p), before);
  EXPECT_EQ(adam.state_dict().tensors.front().second.select(0, 0).item<int>(), 2);

  manual_seed(1);
  expect_contains(message_of<DeviceError>([&] {
                    const cuda::Graph unseeded(test_device(), [&] {
                      bernoulli(0.5, {10}, there());
                      manual_seed(2);
                      bernoulli(0.5, {10}, there());
                    });
                  }),
                  {"bernoulli", "another state"});
  EXPECT_EQ(default_generator().state().seed, 1u);
}

TEST(GraphStep, CollectivesOfNcclRanksAreReplayed) {
  if (const std::string why = distributed::nccl::why_unavailable(); !why.empty())
    GTEST_SKIP() << why;
  if (cuda::device_count() < 2)
    GTEST_SKIP() << "needs 2 GPUs, one for each rank; found " << cuda::device_count();
  StepCase c = with<optim::AdamW>({.lr = 0.01});
  c.clip = 0.5;
  std::vector<double> of_rank[2];
  distributed::run_ranks(
      2,
      [&](const ProcessGroup& group) {
        const Device device = Device::cuda(group.local_rank());
        const auto eager = train_captured(c, device, group, never);
        for (const int from : {3, 5})
          EXPECT_EQ(train_captured(c, device, group, from), eager) << "rank " << group.rank();
        of_rank[group.rank()] = eager;
        group.barrier();
      },
      std::chrono::seconds(60));
  // Everything but the losses is equal on the ranks, and differs from the results of one rank
  // alone.
  ASSERT_EQ(of_rank[0].size(), of_rank[1].size());
  for (std::size_t i = captured_steps; i < of_rank[0].size(); ++i)
    EXPECT_EQ(of_rank[0][i], of_rank[1][i]);
  EXPECT_NE(of_rank[0], train_captured(c, Device::cuda(0), {}, never));
}

}  // namespace
}  // namespace tutti::graph_step_test
