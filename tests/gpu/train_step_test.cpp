// Tests a training step on a device: the host does not wait for the device, work and collectives
// are issued in the right order, and an error that only the device can find is deferred and
// changes nothing.
#include "../distributed/messages.h"
#include "../test_device.h"
#include "nccl_ranks.h"
#include "twin_backend.h"

#include <tutti/autograd/functions.h>
#include <tutti/autograd/grad_mode.h>
#include <tutti/autograd/node.h>
#include <tutti/core/create.h>
#include <tutti/core/cuda/graph.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/distributed/backends/nccl/nccl.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/distributed/data_parallel/join.h>
#include <tutti/distributed/launch/launch.h>
#include <tutti/nn/batch_norm/convert.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>
#include <tutti/nn/functional/loss.h>
#include <tutti/nn/models/resnet.h>
#include <tutti/optim/sgd.h>

#include <gtest/gtest.h>

namespace tutti::train_step_test {
namespace {

using test::expect_contains;
using test::message_of;
using test::test_device;
using test::twins;

TensorOptions there() { return {float32, test_device()}; }

TEST(TrainStep, TheHostWaitsForNothing) {
  for (const bool several : {true, false}) {
    SCOPED_TRACE(several ? "two ranks" : "one rank");
    const ProcessGroup group = several ? twins(test_device()) : ProcessGroup();
    const auto net = nn::resnet("resnet20", {.classes = 10, .channels = 1});
    net->to(test_device(), float32, MemoryFormat::channels_last);
    nn::convert_sync_batchnorm(*net, group);
    distributed::DataParallel ddp(net->named_parameters(), net->named_buffers(), group);
    optim::SGD sgd(net->parameters(), {.lr = 0.1, .momentum = 0.9, .nesterov = true});
    distributed::Join join(group);
    const Tensor images = randn({2, 1, 8, 8}).to(test_device()),
                 labels = zeros({2}, {int64, test_device()});
    const Tensor tally = zeros({}, {float64, test_device()});
    const auto step = [&] {
      ASSERT_TRUE(join.step(2));
      const Tensor logits = (*net)(images), loss = nn::cross_entropy(logits, labels);
      sgd.zero_grad();
      loss.backward();
      {
        const NoGrad no_grad;
        tally.add_(loss.detach().to(float64));
        tally.add_(sum(eq(argmax(logits.detach(), 1), labels)).to(float64));
      }
      sgd.step();
    };
    for (int i = 0; i < 2; ++i) step();
    const std::int64_t waits = cuda::synchronizations();
    step();
    EXPECT_EQ(cuda::synchronizations(), waits);
    nn::check_batch_statistics(*net);
    EXPECT_GT(tally.item<double>(), 0);
  }
}

TEST(TrainStep, SynchronisedOrNotWithWeightsOrNot) {
  nn::BatchNorm2d bn({.channels = 4});
  bn.to(test_device());
  const Tensor x = randn({3, 4, 5, 5}).to(test_device()), weights = full({3}, 0.5, there());
  std::int64_t waits = 0;
  for (int i = 0; i < 3; ++i) {
    if (i == 1) waits = cuda::synchronizations();  // the first call may wait
    bn(x).backward(x);
    bn.forward(x, {.position_weights = weights}).backward(x);
  }
  EXPECT_EQ(cuda::synchronizations(), waits);
}

TEST(TrainStep, TheWeightGradientIsComputedDuringTheAllReduce) {
  std::vector<std::string> log;
  const ProcessGroup group = twins(test_device(), [&](const std::string& what) {
    for (const char* word : {"issue", "wait"})
      if (what.starts_with(word) && what.find("backward") != std::string::npos) log.push_back(word);
  });
  manual_seed(3);
  nn::Conv2d first({.in = 3, .out = 4, .kernel = 3, .bias = false}),
      second({.in = 4, .out = 5, .kernel = 3, .bias = false});
  nn::SyncBatchNorm bn({.channels = 4, .group = group});
  nn::BatchNorm alone({.channels = 4});
  const Tensor x = randn({2, 3, 9, 9}), dy = randn({2, 5, 5, 5});
  second(alone(first(x))).backward(dy);
  const auto expected = to_vector(first.weight.grad()),
             expected_second = to_vector(second.weight.grad());
  for (nn::Module* m : {static_cast<nn::Module*>(&first), static_cast<nn::Module*>(&second),
                        static_cast<nn::Module*>(&bn)}) {
    m->zero_grad();
    m->to(test_device());
  }
  autograd::add_leaf_hook(second.weight, [&](Tensor&) { log.push_back("weight gradient"); });
  for (int i = 0; i < 5; ++i) {
    first.zero_grad(), second.zero_grad();
    log.clear();
    second(bn(first(x.to(test_device())))).backward(dy.to(test_device()));
    EXPECT_EQ(log, (std::vector<std::string>{"issue", "weight gradient", "wait"}));
    // The results show that the work on the two streams is ordered, too: the emulator would reorder
    // it otherwise.
    const auto expect_near = [](const std::vector<double>& a, const std::vector<double>& b) {
      ASSERT_EQ(a.size(), b.size());
      for (std::size_t k = 0; k < a.size(); ++k)
        EXPECT_NEAR(a[k], b[k], 1e-3 * (1 + std::abs(b[k])));
    };
    expect_near(to_vector(first.weight.grad()), expected);
    expect_near(to_vector(second.weight.grad()), expected_second);
  }
}

TEST(TrainStep, RanksThatAreOutOfStepAreFoundLater) {
  std::string aborted;
  const ProcessGroup group = twins(
      test_device(),
      [&](const std::string& what) {
        if (what.starts_with("abort")) aborted = what;
      },
      1);  // adds noise, so that the ranks' packets differ
  nn::SyncBatchNorm bn({.channels = 4, .group = group});
  bn.to(test_device());
  bn(randn({5, 4}).to(test_device()));
  expect_contains(message_of<DistributedError>([&] { bn.check_statistics(); }),
                  {"SyncBatchNorm forward #1", "rank 0 of 2", "not every rank was there"});
  expect_contains(aborted, {"forward #1"});
  EXPECT_EQ(to_vector(bn.running_mean), std::vector<double>(4, 0.0))
      << "the device has moved nothing";
  EXPECT_EQ(bn.num_batches_tracked.item<int>(), 0);
  bn.check_statistics();  // throws only once
  bn(randn({5, 4}).to(test_device()));
  cuda::synchronize(test_device().index());
  EXPECT_THROW(bn(randn({5, 4}).to(test_device())), DistributedError)
      << "a later call says it, too";
}

TEST(TrainStep, TooFewElementsAreFoundLater) {
  nn::BatchNorm bn({.channels = 4});
  bn.to(test_device());
  EXPECT_THROW(bn(randn({1, 4}).to(test_device())), ShapeError) << "the shape alone tells: at once";
  bn.forward(randn({3, 4}).to(test_device()), {.position_weights = full({3}, 0.25, there())});
  expect_contains(message_of<ShapeError>([&] { bn.check_statistics(); }),
                  {"more than 1 value per channel", "got 0.75"});
  EXPECT_EQ(bn.num_batches_tracked.item<int>(), 0);
  EXPECT_EQ(to_vector(bn.running_var), std::vector<double>(4, 1.0));
  const ProcessGroup group = twins(test_device());
  nn::SyncBatchNorm sync({.channels = 4, .group = group});
  sync.to(test_device());
  sync.forward(randn({3, 4}).to(test_device()), {.position_weights = full({3}, 0.125, there())});
  expect_contains(message_of<ShapeError>([&] { sync.check_statistics(); }),
                  {"over all ranks", "got 0.75"});
  EXPECT_EQ(sync.num_batches_tracked.item<int>(), 0);
}

TEST(TrainStep, OneRankOfNcclIssuesItsCollectives) {
  if (const std::string why = distributed::nccl::why_unavailable(); !why.empty())
    GTEST_SKIP() << why;
  test::run_one_rank_of_nccl([](const ProcessGroup& group) {
    EXPECT_TRUE(group.communicates());
    nn::SyncBatchNorm bn({.channels = 4, .group = group});
    nn::BatchNorm alone({.channels = 4});
    bn.to(test_device()), alone.to(test_device());
    const Tensor x = randn({5, 4, 3, 3}).to(test_device());
    const Tensor y = bn(x);
    y.backward(x);
    const Tensor expected = alone(x);
    expected.backward(x);
    EXPECT_EQ(group.for_normalization().traffic().calls, 2);
    const auto a = to_vector(y), b = to_vector(expected), da = to_vector(bn.weight.grad()),
               db = to_vector(alone.weight.grad());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5);
    for (std::size_t i = 0; i < da.size(); ++i) EXPECT_NEAR(da[i], db[i], 1e-3);
    bn.check_statistics();
  });
}

// The nodes of a captured backward count its kernels.
TEST(TrainStep, OneKernelFillsABucket) {
  const ProcessGroup group = twins(test_device());
  Generator random(5);
  StateDict averaged, plain;
  for (int i = 0; i < 70; ++i) {
    const Tensor values = randn({i == 9 ? 0 : 1 + 37 * i}, {}, random).to(test_device());
    averaged.emplace_back(fmt::format("p{}", i), values.clone().requires_grad_());
    plain.emplace_back(fmt::format("p{}", i), values.clone().requires_grad_());
  }
  // The buckets hold different numbers of parameters.
  distributed::DataParallel ddp(averaged, {}, group,
                                {.bucket_cap_mb = 0.1, .first_bucket_mb = 0.02});
  const auto step = [](const StateDict& parameters) {
    Tensor loss;
    for (const auto& [_, p] : parameters) {
      p.set_grad({});
      const Tensor term = sum(exp(p) * p);
      loss = loss.defined() ? loss + term : term;
    }
    loss.backward();
  };
  for (int i = 0; i < 2; ++i) step(averaged), step(plain);
  cuda::Graph with(test_device(), [&] { step(averaged); });
  cuda::Graph without(test_device(), [&] { step(plain); });
  const std::size_t buckets = ddp.buckets().size();
  EXPECT_GE(buckets, 4u);
  // Filling a bucket takes one kernel, and so does the imaginary all-reduce.
  EXPECT_EQ(with.size(), without.size() + 2 * buckets);
  for (int i = 0; i < 2; ++i) {
    for (std::size_t p = 0; p < plain.size(); ++p) {
      const NoGrad no_grad;
      const Tensor values = randn(plain[p].second.shape(), {}, random).to(test_device());
      for (const StateDict* each : {&averaged, &plain}) (*each)[p].second.copy_(values);
    }
    with.replay(), without.replay();
    // Halving and doubling are exact.
    for (std::size_t p = 0; p < plain.size(); ++p)
      EXPECT_EQ(to_vector(averaged[p].second.grad()), to_vector(plain[p].second.grad())) << p;
  }
}

TEST(TrainStep, ItsCollectivesAreRecordedIntoAGraph) {
  const ProcessGroup group = twins(test_device());
  nn::SyncBatchNorm bn({.channels = 4, .group = group}), same({.channels = 4, .group = group});
  bn.to(test_device()), same.to(test_device());
  const Tensor x = randn({5, 4, 3, 3}).to(test_device()),
               dy = randn({5, 4, 3, 3}).to(test_device());
  for (nn::SyncBatchNorm* each : {&bn, &same}) (*each)(x).backward(dy);
  Tensor y;
  cuda::Graph graph(test_device(), [&] {
    bn.zero_grad();
    y = bn(x);
    y.backward(dy);
  });
  const Tensor d_weight = bn.weight.grad();
  for (int i = 0; i < 3; ++i) {
    x.copy_(randn({5, 4, 3, 3}).to(test_device()));
    graph.replay();
    same.zero_grad();
    const Tensor expected = same(x);
    expected.backward(dy);
    EXPECT_EQ(to_vector(y), to_vector(expected));
    EXPECT_EQ(to_vector(d_weight), to_vector(same.weight.grad()));
    EXPECT_EQ(to_vector(bn.running_var), to_vector(same.running_var));
  }
}

}  // namespace
}  // namespace tutti::train_step_test
