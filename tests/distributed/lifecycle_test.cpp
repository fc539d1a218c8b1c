// Tests of the life of groups: after many cycles, failures included, no memory, thread or
// descriptor is left, and groups may be destroyed in any order.
#include "lifecycle_case.h"
#include "messages.h"
#include "resources.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>

#include <future>
#include <optional>

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;

// Creates groups and sub-groups, uses them, and fails in one of four ways.
void cycle(int i) {
  const auto rank = [&](const ProcessGroup& group) {
    const ProcessGroup half = group.split(group.rank() % 2);
    for (const ProcessGroup& each : {group, half, group.for_normalization()})
      each.all_reduce(ones({500})).wait();
    DataParallel ddp({{"w", ones({3}).requires_grad_()}}, {}, group);
    if (group.rank() == 2) {
      if (i % 4 == 0) throw ValueError("gave up");
      if (i % 4 == 1) return;  // departs
      if (i % 4 == 2) group.abort("gave up");
    }
    if (i % 4 == 3)
      (void)group.all_reduce(ones({group.rank() == 2 ? 7 : 8}));  // disagrees; no rank waits
    const Work late = half.all_reduce(ones({20}));
    EXPECT_THROW(group.barrier(), DistributedError);
  };
  try {
    run_ranks(3, rank, 60s);
  } catch (const Error&) {
    // The exception of the rank at fault is expected.
  }
}

TEST(Lifecycle, AHundredCyclesOfFailureLeaveNothingBehind) {
  cycle(0);  // starts the threads that stay
  const auto first = test::Resources::now();
  for (int i = 0; i < 20; ++i) cycle(i);
  const auto before = test::Resources::settled(first);
  for (int i = 0; i < 100; ++i) cycle(i);
  test::expect_nothing_left(before, 64000);
}

TEST(Lifecycle, AGroupMayGoBeforeItsWork) {
  run_ranks(2, test::check_a_group_may_go_before_its_work, 60s);
}

TEST(Lifecycle, ASubgroupMayOutliveItsParent) {
  run_ranks(
      4,
      [](const ProcessGroup& group) {
        std::optional<ProcessGroup> parent = group.split(0);
        const ProcessGroup child = parent->split(parent->rank() % 2),
                           normalization = child.for_normalization();
        parent.reset();
        const ProcessGroup grandchild = child.split(0);
        for (const ProcessGroup& each : {child, normalization, grandchild}) {
          const Tensor x = ones({3});
          each.all_reduce(x).wait();
          EXPECT_EQ(x.select(0, 0).item<int>(), 2);
        }
      },
      60s);
}

TEST(Lifecycle, LayersAndDataParallelKeepTheGroupTheyNeed) {
  run_ranks(
      2,
      [](const ProcessGroup& group) {
        std::optional<ProcessGroup> own = group.split(0);
        std::optional<nn::SyncBatchNorm> layer;
        layer.emplace(nn::SyncBatchNorm::Options{.channels = 2, .group = *own});
        auto ddp =
            std::make_unique<DataParallel>(layer->named_parameters(), layer->named_buffers(), *own);
        own.reset();
        const auto step = [&] { sum((*layer)(full({2, 2}, group.rank()))).backward(); };
        step();
        ddp.reset();  // goes before the tensors that have its hooks
        step();
        ddp = std::make_unique<DataParallel>(layer->named_parameters(), layer->named_buffers(),
                                             group);
        step();
        const Tensor gradient = layer->weight.grad();
        layer.reset();  // goes before the DataParallel
        ddp.reset();
        EXPECT_EQ(to_vector(gradient).size(), 2u);  // it is a view of a bucket that is gone
      },
      60s);
}

TEST(Lifecycle, WorkOfABrokenGroupMayBeThrownAway) {
  std::promise<void> issued;
  run_ranks(
      2,
      [&](const ProcessGroup& group) {
        std::optional<Work> work;
        if (group.rank() == 0) {
          work = group.all_reduce(ones({4}));
          issued.set_value();
        } else {
          issued.get_future().wait();
          group.abort("gave up");
        }
        work.reset();
        EXPECT_THROW(group.barrier(), DistributedError);
      },
      60s);
}

}  // namespace
}  // namespace tutti
