// Tests of process groups with CUDA tensors whose ranks are threads: the local backend, which
// stages them through the host, and the nccl backend with one thread for each device. Ranks as
// processes are tested in tests/gpu/ranks.
#include "../distributed/conformance.h"
#include "../distributed/diverging_rank_case.h"
#include "../distributed/messages.h"
#include "../distributed/unused_parameters_case.h"
#include "../test_device.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/cuda/graph.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/core/cuda/stream.h>
#include <tutti/distributed/backends/nccl/nccl.h>
#include <tutti/distributed/launch/launch.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <thread>

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;
using test::expect_contains;
using test::message_of;
using test::test_device;

TEST(StagedGroup, ConformsOnOneDevice) {
  for (const int ranks : {2, 3})
    run_ranks(
        ranks, [](const ProcessGroup& group) { test::check_conformance_on(group, test_device()); },
        120s);
}

TEST(OneRankOfNccl, IsWhatOneProcessGetsThatAsksForIt) {
  if (const std::string why = nccl::why_unavailable(); !why.empty()) GTEST_SKIP() << why;
  {
    const ProcessGroup group =
        ProcessGroup::from_environment({.backend = "nccl", .device = 0, .timeout = 60s});
    EXPECT_EQ(group.backend(), "nccl");
    EXPECT_TRUE(group.communicates());
    const Tensor x = full({1000}, 3, {.device = Device::cuda(0)});
    group.all_reduce(x).wait();
    EXPECT_EQ(to_vector(x), std::vector<double>(1000, 3));
    EXPECT_EQ(group.traffic().calls, 1);
  }
  EXPECT_EQ(ProcessGroup::from_environment(60s).backend(), "single");
}

class Nccl : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (const std::string why = nccl::why_unavailable(); !why.empty()) GTEST_SKIP() << why;
    if (cuda::device_count() < ranks())
      GTEST_SKIP() << "needs " << ranks() << " GPUs, one for each rank; found "
                   << cuda::device_count();
    nccl::set_environment();
  }
  static int ranks() { return GetParam(); }
  static Device own(const ProcessGroup& group) { return Device::cuda(group.local_rank()); }
  static void run(const std::function<void(const ProcessGroup&)>& fn,
                  std::chrono::milliseconds timeout = 60s) {
    run_ranks(ranks(), fn, {.backend = "nccl", .timeout = timeout});
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, Nccl, ::testing::Values(2, 4));

TEST_P(Nccl, Conforms) {
  run([](const ProcessGroup& group) {
    EXPECT_EQ(group.backend(), "nccl");
    test::check_conformance_on(group, own(group));
  });
}

TEST_P(Nccl, RanksMayUseDifferentParameters) {
  run([](const ProcessGroup& group) {
    test::check_unused_parameters_of_each_rank(group, own(group));
  });
}

TEST_P(Nccl, StagesTensorsOfTheHost) {
  run([](const ProcessGroup& group) {
    const Tensor x = full({1000}, group.rank() + 1.0),
                 all = zeros({group.size(), 2}, {.dtype = int64});
    group.all_reduce(x).wait();
    EXPECT_EQ(to_vector(x), std::vector<double>(1000, group.size() * (group.size() + 1) / 2.0));
    group.all_gather(full({2}, group.rank(), {.dtype = int64}), all).wait();
    for (int r = 0; r < group.size(); ++r) EXPECT_EQ(all.select(0, r).select(0, 1).item<int>(), r);
  });
}

TEST_P(Nccl, TheHostWaitsForNothing) {
  run([](const ProcessGroup& group) {
    const Tensor x = ones({100000}, {.device = own(group)});
    group.all_reduce(x).wait();  // sets up connections
    group.for_normalization().all_reduce(x).wait();
    const auto before = cuda::synchronizations();
    for (int i = 0; i < 20; ++i) {
      Work work = group.all_reduce(x, ReduceOp::mean);
      group.for_normalization().all_reduce(x, ReduceOp::max).wait();
      work.wait();
    }
    group.barrier();  // the host waits here, but by polling
    EXPECT_EQ(cuda::synchronizations(), before);
  });
}

TEST_P(Nccl, OrdersWithTheCallersStream) {
  run([](const ProcessGroup& group) {
    // The caller has a stream of its own, whose work must not overtake the collective.
    const cuda::StreamScope scope(cuda::Stream::create(own(group).index()));
    for (int i = 0; i < 30; ++i) {
      const Tensor x = full({5000}, i, {.device = own(group)});
      x.add_(full({5000}, group.rank() + 1.0, {.device = own(group)}));
      group.all_reduce(x).wait();
      x.mul_(2);
      const double expected = 2 * (i * group.size() + group.size() * (group.size() + 1) / 2.0);
      EXPECT_EQ(to_vector(x), std::vector<double>(5000, expected));
    }
  });
}

TEST_P(Nccl, TensorsLiveUntilTheDeviceIsDone) {
  run([](const ProcessGroup& group) {
    std::vector<Work> work;
    for (int i = 0; i < 50; ++i)
      work.push_back(group.all_reduce(ones({20000}, {.device = own(group)})));  // handles dropped
    const Tensor last = ones({20000}, {.device = own(group)});
    group.all_reduce(last).wait();
    EXPECT_EQ(to_vector(last), std::vector<double>(20000, group.size()));
    for (Work& each : work) each.wait();
  });
}

TEST_P(Nccl, GroupsComeAndGoInAnyOrder) {
  run([](const ProcessGroup& group) {
    for (int i = 0; i < 3; ++i) {
      std::vector<ProcessGroup> groups = {group.split(0), group.split(group.rank() % 2),
                                          group.split(0, -group.rank())};
      const Tensor x = ones({100}, {.device = own(group)});
      for (const ProcessGroup& each : groups) each.all_reduce(x).wait();
      if (group.rank() % 2) std::reverse(groups.begin(), groups.end());
      while (!groups.empty()) groups.pop_back();
    }
    group.barrier();
  });
}

// The reports of 240 groups do not fit into one value of the store.
TEST_P(Nccl, HundredsOfGroupsMayLiveAtOnce) {
  if (!test::emulated()) GTEST_SKIP() << "so many communicators take much of a GPU's memory";
  run([](const ProcessGroup& group) {
    std::vector<ProcessGroup> groups;
    for (int i = 0; i < 240; ++i) groups.push_back(group.split(0));
    const Tensor x = ones({100}, {.device = own(group)});
    std::this_thread::sleep_for(200ms);  // the watcher publishes the reports
    for (const ProcessGroup& each : {groups.front(), groups.back(), group}) {
      x.fill_(1);
      each.all_reduce(x).wait();
      EXPECT_EQ(to_vector(x), std::vector<double>(100, group.size()));
    }
    groups.clear();
    group.barrier();
  });
}

TEST_P(Nccl, AGraphKeepsTheGroupThatIsInIt) {
  run([](const ProcessGroup& group) {
    const Tensor x = ones({1000}, {.device = own(group)});
    std::optional<cuda::Graph> graph;
    {
      const ProcessGroup part = group.split(0);
      part.all_reduce(x).wait();  // sets up connections
      graph.emplace(own(group), [&] { part.all_reduce(x).wait(); });
    }
    std::this_thread::sleep_for(200ms);  // the watcher checks
    x.fill_(1);
    graph->replay();
    EXPECT_EQ(to_vector(x), std::vector<double>(1000, group.size()));
    graph.reset();
    group.barrier();
  });
}

TEST_P(Nccl, AGraphKeepsTheTensorsOfACallThatNobodyWaitsFor) {
  run([](const ProcessGroup& group) {
    const Device device = own(group);
    const Tensor x = full({1000}, group.rank(), {.device = device}),
                 y = ones({10}, {.device = device}),
                 all = zeros({group.size(), 1000}, {.device = device});
    const auto step = [&] {
      Tensor input = x * 2;
      const void* at = input.raw();
      (void)group.all_gather(input, all);  // drops the Work
      input = {};
      for (int i = 0; i < 3; ++i)
        EXPECT_NE(full({1000}, NAN, {.device = device}).raw(), at) << "the collective may read it";
      group.all_reduce(y).wait();  // comes after it on the stream of the group
    };
    step();
    cuda::Graph graph(device, step);
    for (int i = 0; i < 5; ++i) {
      all.fill_(-1);
      graph.replay();
      for (int r = 0; r < group.size(); ++r)
        EXPECT_EQ(to_vector(all.select(0, r)), std::vector<double>(1000, 2 * r));
    }
    group.barrier();
  });
}

TEST_P(Nccl, AReplayUnderWayIsNotCutOff) {
  if (!test::emulated())
    GTEST_SKIP() << "the ranks' orders of collectives differ, which NCCL does not promise to bear";
  setenv("TUTTI_FAKE_NCCL_CONCURRENT", "1", 1);
  run([](const ProcessGroup& group) {
    const Tensor x = ones({1000}, {.device = own(group)}), y = ones({10}, {.device = own(group)});
    {
      const ProcessGroup part = group.split(0);
      part.all_reduce(x).wait();
      cuda::Graph graph(own(group), [&] { part.all_reduce(x).wait(); });
      x.fill_(1);
      if (group.rank() == 0) group.all_reduce(y).wait();  // its device waits for the others
      graph.replay();
    }
    std::this_thread::sleep_for(300ms);  // the watchers check: every rank has released the group
    if (group.rank() != 0) {
      const cuda::StreamScope beside(cuda::Stream::create(own(group).index()));
      group.all_reduce(y).wait();
    }
    EXPECT_EQ(to_vector(x), std::vector<double>(1000, group.size()));
    group.barrier();
  });
  unsetenv("TUTTI_FAKE_NCCL_CONCURRENT");
}

TEST_P(Nccl, AGroupEndsThoughAGraphOutlivesIt) {
  std::vector<std::optional<cuda::Graph>> graphs(static_cast<std::size_t>(ranks()));
  run(
      [&](const ProcessGroup& group) {
        const Tensor x = ones({1000}, {.device = own(group)});
        group.all_reduce(x).wait();
        graphs[static_cast<std::size_t>(group.rank())].emplace(own(group),
                                                               [&] { group.all_reduce(x).wait(); });
      },
      1s);
}

TEST_P(Nccl, AFailureEndsEveryGroupThoughAGraphHoldsOne) {
  std::atomic<int> waiting = 0;
  run([&](const ProcessGroup& group) {
    const Tensor x = ones({1000}, {.device = own(group)}),
                 packet = ones({10}, {.device = own(group)});
    group.all_reduce(x).wait();
    group.for_normalization().all_reduce(packet).wait();
    const cuda::Graph graph(own(group), [&] { group.all_reduce(x).wait(); });
    if (group.rank() == 1) {
      while (waiting < group.size() - 1) std::this_thread::sleep_for(5ms);
      group.abort("no space left");
    } else {
      group.for_normalization().all_reduce(packet).wait();
      ++waiting;
    }
    to_vector(packet);  // no device hangs, although the graph lives
    expect_contains(message_of<DistributedError>([&] { group.barrier(); }),
                    {"rank 1 gave up", "no space left"});
  });
}

TEST_P(Nccl, ASplitThatComesTooLateIsNotLeftBehind) {
  const auto table = std::make_shared<rendezvous::SharedTable>();
  std::atomic<int> given_up = 0;
  std::vector<int> all(static_cast<std::size_t>(ranks()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::jthread> threads;
  for (const int rank : all)
    threads.emplace_back([&, rank] {
      const auto world = nccl::make_world(rendezvous::in_memory(table, {rank, ranks(), {}, 700ms}),
                                          {.local_rank = rank});
      if (rank == 1) {
        while (given_up < ranks() - 1) std::this_thread::sleep_for(5ms);
      } else {
        expect_contains(message_of<TimeoutError>([&] { world->subgroup(all, "late"); }),
                        {"creating group 'late'", "700 ms"});
        ++given_up;
      }
    });
}

TEST_P(Nccl, AMissingRankIsNamedAtTheDeadline) {
  std::atomic<int> failed = 0;
  run([&](const ProcessGroup& group) {
    const Tensor x = ones({10}, {.device = own(group)});
    group.all_reduce(x).wait();
    if (group.rank() == 1) {
      while (failed < group.size() - 1) std::this_thread::sleep_for(5ms);
    } else {
      // Only the device waits; the host gets the error in a later call, here the barrier.
      group.all_reduce(x, ReduceOp::sum, {.name = "bucket 4", .timeout = 700ms}).wait();
      expect_contains(message_of<TimeoutError>([&] { group.barrier(); }),
                      {"all_reduce #2 of group 'world' (bucket 4, 40 B)",
                       "rank 1 did not arrive within 700 ms", "it last completed #1"});
      ++failed;
    }
    // The failure is the same on every rank and in every later call.
    expect_contains(message_of<TimeoutError>([&] { group.barrier(); }), {"rank 1 did not arrive"});
    expect_contains(message_of<TimeoutError>([&] { group.all_reduce(x).wait(); }),
                    {"rank 1 did not arrive"});
    EXPECT_THROW(group.for_normalization().barrier(), DistributedError);
  });
}

TEST_P(Nccl, ErrorsNameTheDivergingRankAndItsLayer) {
  for (const std::string fault :
       {"eval", "forward", "busy", "channels", "backward", "options", "order"})
    run(
        [&](const ProcessGroup& group) {
          const std::string text =
              message_of<Error>([&] { test::diverge(fault, group, own(group)); });
          expect_contains(text, test::expected_words(fault, group));
        },
        test::diverging_rank_timeout);
}

TEST_P(Nccl, MismatchesShowBothSidesOnEveryRank) {
  run([](const ProcessGroup& group) {
    const bool odd = group.rank() == 1;
    group.barrier();
    const std::string text = message_of<DistributedError>([&] {
      group
          .all_reduce(ones({odd ? 5 : 4}, {.device = own(group)}), ReduceOp::sum,
                      {.name = odd ? "layer3.0.bn1" : "layer3.0.bn2"})
          .wait();
      group.barrier();
    });
    expect_contains(text, {"rank 0 at all_reduce(sum) #2 of float32 of shape (4,) (layer3.0.bn2)",
                           "rank 1 at all_reduce(sum) #2 of float32 of shape (5,) (layer3.0.bn1)"});
  });
}

TEST_P(Nccl, AnExceptionReachesEverybody) {
  const std::string cause = message_of<ValueError>([&] {
    run([](const ProcessGroup& group) {
      group.barrier();
      if (group.rank() == 1) throw ValueError("the disk is full");
      expect_contains(message_of<DistributedError>([&] {
                        group.all_reduce(ones({3}, {.device = own(group)})).wait();
                        group.barrier();
                      }),
                      {"rank 1 failed", "the disk is full"});
    });
  });
  EXPECT_EQ(cause, "the disk is full");
}

TEST_P(Nccl, AbortReachesARankThatWaits) {
  run([](const ProcessGroup& group) {
    if (group.rank() == 0) group.abort("parameter 'head.weight' got no gradient");
    else
      expect_contains(message_of<DistributedError>([&] { group.barrier(); }),
                      {"rank 0 gave up", "head.weight"});
  });
}

TEST_P(Nccl, ARankThatReturnsEarlyIsNamed) {
  run([](const ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 1) return;
    expect_contains(message_of<DistributedError>([&] { group.barrier({.name = "epoch"}); }),
                    {"barrier #2", "epoch", "rank 1 will never arrive", "destroyed"});
  });
}

TEST_P(Nccl, TwoRanksOfOneDeviceAreRefused) {
  const auto table = std::make_shared<rendezvous::SharedTable>();
  std::vector<std::jthread> threads;
  for (const int rank : {0, 1})
    threads.emplace_back([&table, rank] {
      expect_contains(message_of<DistributedError>([&] {
                        nccl::make_world(rendezvous::in_memory(table, {rank, 2, {}, 20s}),
                                         {.local_rank = rank, .device = 0});
                      }),
                      {"ranks 0 and 1 have the same GPU", "TUTTI_NCCL_SHARE_GPU=1"});
    });
}

// ---- values of the store that no rank of tutti has written

TEST_P(Nccl, AMalformedSeatOrAnswerOfAnotherRankIsRefused) {
  for (const int rank : {0, 1}) {
    const auto table = std::make_shared<rendezvous::SharedTable>();
    const auto other = rendezvous::in_memory(table, {1 - rank, 2});
    other->set(rank == 0 ? "seats/1" : "seats answers/1", "none");
    expect_contains(
        message_of<DistributedError>([&] {
          nccl::make_world(rendezvous::in_memory(table, {rank, 2, {}, 20s}), {.local_rank = rank});
        }),
        {fmt::format("GPUs of rank {}, got 4 other bytes", 1 - rank)});
    // The others learn why.
    const auto failure = other->failure();
    ASSERT_TRUE(failure);
    expect_contains(failure->what, {fmt::format("rank {} could not start", rank), "other bytes"});
  }
}

TEST_P(Nccl, AMalformedReportOrFailureFailsEveryRank) {
  for (const std::string key : {"state/1", "failure"}) {
    const auto table = std::make_shared<rendezvous::SharedTable>();
    std::atomic<int> failed = 0;
    std::vector<std::jthread> threads;
    for (const int rank : {0, 1})
      threads.emplace_back([&, rank] {
        const ProcessGroup group(nccl::make_world(rendezvous::in_memory(table, {rank, 2, {}, 20s}),
                                                  {.local_rank = rank}));
        group.barrier();
        if (rank == 1) {
          std::this_thread::sleep_for(300ms);  // the report about the barrier has been published
          while (failed == 0) {  // the watcher may publish a report of its own meanwhile
            rendezvous::in_memory(table, {1, 2})->set(key, "malformed");
            std::this_thread::sleep_for(5ms);
          }
        }
        // A barrier that rank 0 has joined before it failed may still let rank 1 pass, the next
        // cannot.
        const auto wait_for_failure = [&] {
          while (true) group.barrier();
        };
        expect_contains(
            message_of<DistributedError>(wait_for_failure),
            {key == "failure" ? "that no rank of tutti has written" : "the report of rank 1"});
        ++failed;
      });
  }
}

TEST_P(Nccl, ADeviceThatIsNotThereFailsAllOfThem) {
  const auto table = std::make_shared<rendezvous::SharedTable>();
  std::vector<std::jthread> threads;
  threads.emplace_back([&] {
    EXPECT_THROW(nccl::make_world(rendezvous::in_memory(table, {0, 2, {}, 20s}),
                                  {.local_rank = 0, .device = 99}),
                 DeviceError);
  });
  threads.emplace_back([&] {
    expect_contains(message_of<DistributedError>([&] {
                      nccl::make_world(rendezvous::in_memory(table, {1, 2, {}, 20s}),
                                       {.local_rank = 1, .device = 1});
                    }),
                    {"rank 0 could not start", "cuda:99"});
  });
}

}  // namespace
}  // namespace tutti
