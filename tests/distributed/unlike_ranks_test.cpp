// Tests that ranks which do not mean the same by a call all get an error, on ranks that are
// threads. tests/mpi runs the same cases on processes, also on several hosts.
#include "unlike_ranks_case.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;
using test::expect_contains;
using test::message_of;

TEST(UnlikeRanks, AreFoundOnEveryRank) {
  for (const test::UnlikeRanks& each : test::all_unlike_ranks())
    run_ranks(
        3, [&](const ProcessGroup& group) { test::expect_unlike_ranks_are_found(each, group); },
        20s);
}

TEST(UnlikeRanks, MayBuildTrainAndEvaluateForThemselves) {
  run_ranks(3, test::check_what_ranks_may_do_differently, 60s);
}

TEST(UnlikeRanks, ARankThatEvaluatesAloneAtTheEndIsAdvised) {
  run_ranks(
      2,
      [](const ProcessGroup& group) {
        nn::SyncBatchNorm layer({.channels = 2, .group = group});
        if (group.rank() == 1) return;
        expect_contains(
            message_of<DistributedError>([&] {
              layer(randn({3, 2}));
            }),
            {"rank 1 will never arrive", "under NoGrad, in eval(), or into a no_sync()"});
      },
      60s);
}

// Each rank makes an object. The thread of rank 1 then uses that of rank 0, which it must not wait
// for.
template <class Object>
void expect_one_object_of_two_ranks_is_found(
    const std::function<std::shared_ptr<Object>(const ProcessGroup&)>& make,
    const std::function<void(Object&)>& use) {
  std::promise<std::shared_ptr<Object>> of_rank_0;
  run_ranks(2, [&](const ProcessGroup& group) {
    const auto own = make(group);
    if (group.rank() == 0) {
      of_rank_0.set_value(own);
      return group.barrier();
    }
    const auto other = of_rank_0.get_future().get();
    const auto began = Clock::now();
    const std::string text = message_of<DistributedError>([&] { use(*other); });
    expect_contains(text,
                    {" is that of rank 0, but rank 1 calls it; give the thread of each rank a "
                     "model, a DataParallel and a group of its own"});
    EXPECT_LT(Clock::now() - began, 60s);  // the timeout is 5 minutes
    group.barrier();                       // the group of rank 1 goes on
  });
}

TEST(OneObjectOfTwoRanks, IsFoundAtItsFirstCall) {
  expect_one_object_of_two_ranks_is_found<ProcessGroup>(
      [](const ProcessGroup& group) { return std::make_shared<ProcessGroup>(group); },
      [](ProcessGroup& group) { group.all_reduce(ones({2})).wait(); });
  expect_one_object_of_two_ranks_is_found<ProcessGroup>(
      [](const ProcessGroup& group) {
        return std::make_shared<ProcessGroup>(group.split(0, -group.rank()));
      },
      [](ProcessGroup& group) { group.for_normalization().barrier(); });
  expect_one_object_of_two_ranks_is_found<nn::SyncBatchNorm>(
      [](const ProcessGroup& group) {
        return std::make_shared<nn::SyncBatchNorm>(
            nn::SyncBatchNorm::Options{.channels = 2, .group = group});
      },
      [](nn::SyncBatchNorm& layer) {
        layer(randn({3, 2}));
      });
  struct Model {
    Tensor weight = ones({2}).requires_grad_();
    DataParallel ddp;
    explicit Model(const ProcessGroup& group) : ddp({{"weight", weight}}, {}, group) {}
  };
  const auto make = [](const ProcessGroup& group) { return std::make_shared<Model>(group); };
  for (const auto& use : std::vector<std::function<void(Model&)>>{
           [](Model& model) { sum(model.weight).backward(); },
           [](Model& model) { model.ddp.synchronize_gradients(); }})
    expect_one_object_of_two_ranks_is_found<Model>(make, use);
}

TEST(OneObjectOfTwoRanks, AHelperThreadOfARankMayUseItsObjects) {
  run_ranks(2, [](const ProcessGroup& group) {
    nn::SyncBatchNorm layer({.channels = 2, .group = group});
    std::jthread([&] { layer(randn({3, 2})); }).join();
    EXPECT_EQ(group.for_normalization().traffic().calls, 1);
  });
}

// A world inside of a rank is another world.
TEST(OneObjectOfTwoRanks, ARankOfAnInnerWorldMayUseAnObjectOfTheOuterOne) {
  run_ranks(2, [](const ProcessGroup& outer) {
    run_ranks(2, [&](const ProcessGroup& inner) {
      if (inner.rank() != outer.rank()) outer.barrier();
      inner.barrier();
    });
    outer.barrier();
  });
}

}  // namespace
}  // namespace tutti
