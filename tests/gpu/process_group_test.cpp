// Tests of process groups with CUDA tensors whose ranks are threads: staged through the host, and
// by NCCL with one thread for each device. Ranks as processes are tested in tests/gpu/ranks.
#include "../distributed/conformance.h"
#include "../distributed/diverging_rank_case.h"
#include "../distributed/messages.h"
#include "../distributed/unused_parameters_case.h"
#include "../test_device.h"
#include "nccl_ranks.h"

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
#include <optional>
#include <thread>

namespace tutti::process_group_test {
namespace {

using namespace distributed;
using namespace std::chrono_literals;
using test::expect_contains;
using test::message_of;
using test::test_device;

TEST(StagedGroup, ConformsOnOneDevice) {
  for (const int ranks : {2, 3})
    run_ranks(ranks,
              [](const ProcessGroup& group) {
                EXPECT_FALSE(group.why_staged().empty());
                EXPECT_FALSE(group.capabilities(test_device()).device_waits);
                test::check_conformance_on(group, test_device());
              },
              {.timeout = 120s, .nccl = false});
}

TEST(OneRankOfNccl, IssuesItsCollectives) {
  if (const std::string why = nccl::why_unavailable(); !why.empty()) GTEST_SKIP() << why;
  test::run_one_rank_of_nccl([](const ProcessGroup& group) {
    EXPECT_TRUE(group.communicates());
    EXPECT_TRUE(group.capabilities(Device::cuda(0)).device_waits);
    const Tensor x = full({1000}, 3, {.device = Device::cuda(0)});
    group.all_reduce(x).wait();
    EXPECT_EQ(to_vector(x), std::vector<double>(1000, 3));
    EXPECT_EQ(group.traffic().calls, 1);
  });
  EXPECT_EQ(ProcessGroup::from_environment(60s).backend(), "single");
}

class Nccl : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (const std::string why = nccl::why_unavailable(); !why.empty()) GTEST_SKIP() << why;
    if (cuda::device_count() < ranks())
      GTEST_SKIP() << "needs " << ranks() << " GPUs, one for each rank; found "
                   << cuda::device_count();
  }
  static int ranks() { return GetParam(); }
  static Device own(const ProcessGroup& group) { return Device::cuda(group.local_rank()); }
  static void run(const std::function<void(const ProcessGroup&)>& fn,
                  std::chrono::milliseconds timeout = 60s) {
    run_ranks(ranks(), fn, {.timeout = timeout});
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, Nccl, ::testing::Values(2, 4));

TEST_P(Nccl, Conforms) {
  run([](const ProcessGroup& group) {
    EXPECT_EQ(group.why_staged(), "");
    EXPECT_TRUE(group.capabilities(own(group)).graph_capture);
    EXPECT_FALSE(group.capabilities(Device::cpu()).device_waits);
    test::check_conformance_on(group, own(group));
  });
}

TEST_P(Nccl, RanksMayUseDifferentParameters) {
  run([](const ProcessGroup& group) {
    test::check_unused_parameters_of_each_rank(group, own(group));
  });
}

TEST_P(Nccl, TensorsOfTheHostGoThroughTheHosts) {
  run([](const ProcessGroup& group) { test::check_conformance(group); });
}

TEST_P(Nccl, CallsOnBothPathsAreUnderWayTogether) {
  run([](const ProcessGroup& group) {
    const int n = group.size();
    for (int i = 0; i < 20; ++i) {
      const Tensor there = full({100}, group.rank() + i, {.device = own(group)}),
                   here = full({100}, group.rank() - i);
      Work first = group.all_reduce(i % 2 ? there : here),
           second = group.all_reduce(i % 2 ? here : there);
      second.wait();
      first.wait();
      EXPECT_EQ(to_vector(there), std::vector<double>(100, n * (n - 1) / 2 + n * i));
      EXPECT_EQ(to_vector(here), std::vector<double>(100, n * (n - 1) / 2 - n * i));
    }
  });
}

TEST_P(Nccl, MixedDevicesInOneCallShowBothSides) {
  for (const bool is_first : {true, false})
    run([&](const ProcessGroup& group) {
      const Tensor x = ones({4}, {.device = own(group)});
      if (!is_first) group.all_reduce(x).wait();
      const std::string text = message_of<DistributedError>([&] {
        group.all_reduce(group.rank() == 1 ? ones({4}) : x).wait();
        group.barrier();
      });
      expect_contains(text, {"of shape (4,) between GPUs", "of shape (4,) on the hosts"});
    });
}

TEST_P(Nccl, ARefusalShowsBothSides) {
  for (const bool is_first : {true, false})
    run([&](const ProcessGroup& group) {
      const Tensor x = ones({4}, {.device = own(group)});
      if (!is_first) group.all_reduce(x).wait();
      const std::string text = message_of<Error>([&] {
        const Tensor expanded = ones({1}, {.device = own(group)}).expand({4});
        group.all_reduce(group.rank() == 1 ? expanded : x).wait();
        group.barrier();
      });
      expect_contains(text, {"rank 1 at barrier #", "(refused all_reduce: all_reduce: elements of",
                             "all_reduce(sum) #"});
    });
}

TEST_P(Nccl, WhereARankHasNoGpuAllAreStaged) {
  const int first = cuda::device_count() - ranks() + 1;
  run_ranks(ranks(),
            [&](const ProcessGroup& group) {
              expect_contains(group.why_staged(),
                              {fmt::format("rank {} has no GPU of its own", group.size() - 1)});
              EXPECT_FALSE(group.capabilities(Device::cuda(0)).graph_capture);
              const Tensor x = ones({4}, {.device = Device::cuda(0)});
              group.all_reduce(x).wait();
              EXPECT_EQ(to_vector(x), std::vector<double>(4, group.size()));
            },
            {.timeout = 60s, .first_device = first});
  setenv("TUTTI_NCCL", "0", 1);
  run([](const ProcessGroup& group) {
    expect_contains(group.why_staged(), {"rank 0 is told not to use NCCL"});
  });
  unsetenv("TUTTI_NCCL");
}

TEST_P(Nccl, TheFirstCallInsideAGraphIsAnError) {
  run([](const ProcessGroup& group) {
    const Tensor x = ones({4}, {.device = own(group)});
    expect_contains(message_of<DeviceError>([&] {
                      const cuda::Graph graph(own(group), [&] { group.all_reduce(x).wait(); });
                    }),
                    {"sets up NCCL", "run the step once before it is captured"});
    group.all_reduce(x).wait();
    EXPECT_EQ(to_vector(x), std::vector<double>(4, group.size()));
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

TEST_P(Nccl, HundredsOfGroupsMayLiveAtOnce) {
  if (!test::emulated()) GTEST_SKIP() << "so many communicators take much of a GPU's memory";
  run([](const ProcessGroup& group) {
    std::vector<ProcessGroup> groups;
    for (int i = 0; i < 240; ++i) groups.push_back(group.split(0));
    const Tensor x = ones({100}, {.device = own(group)});
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
    group.all_reduce(y).wait();  // sets up NCCL, in which the hosts wait for each other
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

TEST_P(Nccl, ARankThatDoesNotSetUpIsNamed) {
  std::atomic<int> given_up = 0;
  run(
      [&](const ProcessGroup& group) {
        const Tensor x = ones({10}, {.device = own(group)});
        if (group.rank() == 1) {
          while (given_up < ranks() - 1) std::this_thread::sleep_for(5ms);
          return;
        }
        const std::string text = message_of<TimeoutError>([&] { group.all_reduce(x).wait(); });
        expect_contains(
            text, {"all_reduce #1 of group 'world' (40 B)", "rank 1 did not arrive within 700 ms"});
        ++given_up;
      },
      700ms);
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
          expect_contains(text, test::expected_words(fault, group, own(group)));
        },
        test::diverging_rank_timeout);
}

TEST_P(Nccl, ATensorOnTheDeviceOfAnotherRankIsRefused) {
  run([](const ProcessGroup& group) {
    const Device other = Device::cuda(group.rank() == 0 ? 1 : 0);
    const std::string text =
        message_of<DeviceError>([&] { group.all_reduce(ones({3}, {.device = other})).wait(); });
    expect_contains(text, {"all_reduce: expected a tensor on cuda:" + std::to_string(group.rank()),
                           "got one on " + to_string(other), "`nccl` to false"});
  });
}

// The first call is compared before it starts, later ones where they take long.
TEST_P(Nccl, MismatchesShowBothSidesOnEveryRank) {
  for (const bool is_first : {true, false})
    run([&](const ProcessGroup& group) {
      const bool odd = group.rank() == 1;
      if (is_first) group.barrier();
      else group.all_reduce(ones({3}, {.device = own(group)})).wait();
      const std::string text = message_of<DistributedError>([&] {
        group
            .all_reduce(ones({odd ? 5 : 4}, {.device = own(group)}), ReduceOp::sum,
                        {.name = odd ? "layer3.0.bn1" : "layer3.0.bn2"})
            .wait();
        group.barrier();
      });
      expect_contains(text,
                      {"rank 0 at all_reduce(sum) #2 of float32 of shape (4,) (layer3.0.bn2)",
                       "rank 1 at all_reduce(sum) #2 of float32 of shape (5,) (layer3.0.bn1)"});
    });
}

}  // namespace
}  // namespace tutti::process_group_test
