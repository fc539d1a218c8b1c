// Tests of groups whose ranks are threads: the conformance suite, and what happens when a rank
// throws, returns early, hangs or disagrees.
#include "conformance.h"
#include "messages.h"

#include <tutti/core/parallel.h>
#include <tutti/distributed/backends/local/local.h>
#include <tutti/distributed/backends/mpi/mpi.h>
#include <tutti/distributed/group_info.h>
#include <tutti/distributed/world.h>

#include <future>
#include <optional>
#include <thread>

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;

using test::expect_contains;
using test::message_of;

TEST(ProcessGroup, AloneConforms) {
  test::check_conformance(ProcessGroup());
  EXPECT_EQ(ProcessGroup().traffic().calls, 0);
}

TEST(ProcessGroup, BareStartIsAGroupOfOne) {
  const ProcessGroup group = ProcessGroup::from_environment();
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.backend(), "single");
  EXPECT_EQ(world().size(), 1);
}

TEST(ProcessGroup, BareStartOfAJobOfManyIsRefused) {
  setenv("WORLD_SIZE", "4", 1);
  expect_contains(message_of<DistributedError>([] { ProcessGroup::from_environment(); }),
                  {"WORLD_SIZE=4", "mpirun -n 4"});
  setenv("WORLD_SIZE", "four", 1);
  expect_contains(message_of<DistributedError>([] { ProcessGroup::from_environment(); }),
                  {"WORLD_SIZE='four'"});
  unsetenv("WORLD_SIZE");
}

TEST(ProcessGroup, HostsCanBeEmulated) {
  setenv("TUTTI_RANKS_PER_HOST", "2", 1);
  for (const int ranks : {1, 2, 5}) run_ranks(ranks, test::check_emulated_hosts, 60s);
  setenv("TUTTI_RANKS_PER_HOST", "2x", 1);
  expect_contains(message_of<ValueError>([] { ProcessGroup().split_by_host(); }),
                  {"TUTTI_RANKS_PER_HOST='2x'"});
  unsetenv("TUTTI_RANKS_PER_HOST");
}

class CountedChecks : public Watched {
 public:
  bool check() noexcept override {
    ++count;
    return false;
  }
  std::atomic<int> count = 0;
};

TEST(World, ItsWatcherStaysStopped) {
  World world{World::Options{}};
  const auto before = std::make_shared<CountedChecks>();
  world.watcher().watch(before);
  while (before->count == 0) std::this_thread::sleep_for(1ms);
  world.watcher().stop();
  const auto after = std::make_shared<CountedChecks>();
  world.watcher().watch(after);
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(after->count, 0);
}

TEST(Mpi, LargeReductionsUseAtMostAGibibyteOnAHost) {
  for (const std::size_t ranks : {1, 2, 8, 64, 256})
    for (const bool one_host : {false, true})
      EXPECT_LE(3 * ranks * ranks * mpi::piece_limit(ranks, one_host), std::size_t{1} << 30);
  EXPECT_EQ(mpi::piece_limit(8, false), std::size_t{4} << 20);
}

class Local : public ::testing::TestWithParam<int> {};

TEST_P(Local, Conforms) { run_ranks(GetParam(), test::check_conformance, 60s); }

INSTANTIATE_TEST_SUITE_P(Ranks, Local, ::testing::Values(1, 2, 3, 5));

TEST(HostLayout, ListsTheRanksOfEachHostFromTheLowestOn) {
  const HostLayout layout({.rank = 3, .size = 5, .hosts = {7, 2, 7, 2, 9}});
  EXPECT_EQ(layout.hosts, (std::vector<std::vector<int>>{{0, 2}, {1, 3}, {4}}));
  EXPECT_EQ(layout.own_host(), (std::vector{1, 3}));
  EXPECT_FALSE(layout.is_leader());
  EXPECT_EQ(layout.fewest_ranks(), 1u);
  EXPECT_EQ(layout.most_ranks(), 2u);
  EXPECT_TRUE(HostLayout({.rank = 1, .size = 3}).is_one_host());
}

TEST_P(Local, ConformsOnSeveralHosts) {
  run_ranks(GetParam(), test::check_conformance, {.timeout = 60s, .ranks_per_host = 2});
}

TEST(Local, AddsHostByHostWhereToldTheHosts) {
  // 5 ranks, 2 on a host: ((r0 + r1) + (r2 + r3)) + r4, in float32 also for 16-bit data.
  for (const DType dtype : {float32, bfloat16, float16}) {
    constexpr std::int64_t n = 3000;
    std::vector<std::vector<double>> ranks;
    for (int r = 0; r < 5; ++r) ranks.push_back(to_vector(test::contributed(dtype, {n}, r)));
    std::vector<double> sums, means;
    for (std::size_t i = 0; i < n; ++i) {
      const auto x = [&](std::size_t r) { return static_cast<float>(ranks[r][i]); };
      const float sum = ((x(0) + x(1)) + (x(2) + x(3))) + x(4);
      sums.push_back(sum);
      means.push_back(sum / 5);
    }
    const auto rounded = [&](const std::vector<double>& values) {
      return to_vector(tensor(values, {n}, {.dtype = dtype}));
    };
    run_ranks(5,
              [&](const ProcessGroup& group) {
                const Tensor sum = test::contributed(dtype, {n}, group.rank()), mean = sum.clone();
                group.all_reduce(sum).wait();
                group.all_reduce(mean, ReduceOp::mean).wait();
                EXPECT_EQ(to_vector(sum), rounded(sums));
                EXPECT_EQ(to_vector(mean), rounded(means));
                EXPECT_FALSE(test::adds_in_rank_order(group, Device::cpu()));
              },
              {.ranks_per_host = 2});
  }
  EXPECT_THROW(run_ranks(2, [](const ProcessGroup&) {}, {.ranks_per_host = -1}), ValueError);
}

TEST(RunRanks, SetsWorldAndSharesTheThreads) {
  set_num_threads(5);
  std::atomic<int> ranks = 0;
  run_ranks(2, [&](const ProcessGroup& group) {
    EXPECT_TRUE(world() == group);
    EXPECT_EQ(world().rank(), group.rank());
    EXPECT_EQ(num_threads(), 2);
    ranks += 1 + group.rank();
  });
  EXPECT_EQ(ranks, 3);
  EXPECT_EQ(world().size(), 1);
  set_num_threads(1);
  EXPECT_THROW(run_ranks(0, [](const ProcessGroup&) {}), ValueError);
  EXPECT_THROW(run_ranks(2, nullptr), ValueError);
}

TEST(RunRanks, TheFirstExceptionIsThrownAgainAndReachesEverybody) {
  std::vector<std::string> seen(3);
  const std::string cause = message_of<ValueError>([&] {
    run_ranks(3, [&](const ProcessGroup& group) {
      if (group.rank() == 1) throw ValueError("the disk is full");
      seen[static_cast<std::size_t>(group.rank())] = message_of<DistributedError>(
          [&] { group.all_reduce(ones({2}), ReduceOp::sum, {.name = "loss"}).wait(); });
    });
  });
  EXPECT_EQ(cause, "the disk is full");
  for (const int r : {0, 2})
    expect_contains(seen[static_cast<std::size_t>(r)],
                    {"all_reduce #1", "loss", "rank 1 failed", "the disk is full"});
}

TEST(RunRanks, WhatIsNoStdExceptionIsThrownAgainToo) {
  std::string seen;
  EXPECT_THROW(run_ranks(2,
                         [&](const ProcessGroup& group) {
                           if (group.rank() == 1) throw 42;
                           seen = message_of<DistributedError>([&] { group.barrier(); });
                         }),
               int);
  expect_contains(seen, {"rank 1 failed: an exception that is no std::exception"});
}

TEST(RunRanks, ATimeoutThatIsNotPositiveIsRefused) {
  for (const auto timeout : {0ms, -5ms}) {
    expect_contains(message_of<ValueError>([&] {
                      run_ranks(
                          2, [](auto&) {}, timeout);
                    }),
                    {"run_ranks: expected a positive timeout, got "});
    EXPECT_THROW(ProcessGroup::from_environment(timeout), ValueError);
  }
  run_ranks(2, [](const ProcessGroup& group) {
    EXPECT_THROW(group.barrier({.timeout = -5ms}), ValueError);
  });
  const ProcessGroup alone;
  EXPECT_THROW(alone.barrier({.timeout = -5ms}), ValueError);
  EXPECT_THROW((void)alone.all_reduce(ones({2}), ReduceOp::sum, {.timeout = -5ms}), ValueError);
}

// As a communication hook does: the group is aborted before the exception has left it.
TEST(RunRanks, TheExceptionOfTheRankThatGivesUpIsThrownAgainThoughOthersSeeItsEndBefore) {
  struct NoCompressor : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  EXPECT_THROW(run_ranks(3,
                         [](const ProcessGroup& group) {
                           if (group.rank() != 1) return group.barrier();
                           group.abort("no compressor");
                           std::this_thread::sleep_for(50ms);
                           throw NoCompressor("no compressor");
                         }),
               NoCompressor);
}

TEST(RunRanks, ARankThatReturnsEarlyIsNamedAtOnce) {
  run_ranks(
      3,
      [&](const ProcessGroup& group) {
        if (group.rank() == 2) return;
        expect_contains(message_of<DistributedError>([&] { group.barrier({.name = "epoch"}); }),
                        {"barrier #1", "epoch", "rank 2", "returned"});
      },
      60s);
}

TEST(Local, ACompletedCollectiveHoldsNoTensorOfAnotherRank) {
  run_ranks(2, [](const ProcessGroup& group) {
    const Tensor x = ones({3});
    std::optional<Work> work = group.all_reduce(x);
    work->wait();
    if (group.rank() == 0) {
      work.reset();
      EXPECT_EQ(x.storage().use_count(), 1) << "rank 1 still has its Work";
    }
    group.barrier();
  });
}

TEST(Failures, AMissingRankIsNamedAtTheDeadline) {
  std::promise<void> rank_0_is_there, others_failed;
  std::atomic<int> failed = 0;
  run_ranks(3, [&](const ProcessGroup& group) {
    group.barrier();
    const Tensor x = ones({10});
    if (group.rank() == 1) {
      others_failed.get_future().wait();
      // A call that comes too late gets the same cause, because the group stays broken.
      expect_contains(message_of<TimeoutError>([&] { group.all_reduce(x).wait(); }),
                      {"rank 1 did not arrive"});
    } else {
      // The last rank to come has the shortest timeout, so rank 0 cannot miss the deadline, however
      // busy the machine is.
      if (group.rank() == 2) rank_0_is_there.get_future().wait();
      const auto timeout = group.rank() == 2 ? 50ms : 60s;
      Work work = group.all_reduce(x, ReduceOp::sum, {.name = "bucket 4", .timeout = timeout});
      if (group.rank() == 0) rank_0_is_there.set_value();
      const std::string text = message_of<TimeoutError>([&] { work.wait(); });
      expect_contains(text, {"all_reduce #2 of group 'world' (bucket 4, 40 B)",
                             "rank 1 did not arrive within 50 ms", "it last completed #1"});
      if (++failed == 2) others_failed.set_value();
    }
    EXPECT_THROW(group.barrier(), DistributedError);
    EXPECT_THROW(group.for_normalization().barrier(), DistributedError);
  });
}

TEST(Failures, TheEarliestDeadlineOfTheRanksCounts) {
  std::promise<void> rank_0_is_there, others_failed;
  std::atomic<int> failed = 0;
  run_ranks(3, [&](const ProcessGroup& group) {
    if (group.rank() == 2) return others_failed.get_future().wait();
    if (group.rank() == 1) rank_0_is_there.get_future().wait();
    // Rank 1 comes while rank 0 waits, with a longer timeout.
    const std::string text = message_of<TimeoutError>([&] {
      Work work =
          group.all_reduce(ones({10}), ReduceOp::sum, {.timeout = group.rank() == 0 ? 500ms : 20s});
      if (group.rank() == 0) rank_0_is_there.set_value();
      work.wait();
    });
    expect_contains(text, {"rank 2 did not arrive within 500 ms"});
    if (++failed == 2) others_failed.set_value();
  });
}

// However many ranks are absent, the error tells the latest calls of the first four.
TEST(Failures, ManyAbsentRanksAreNamedInFewWords) {
  std::promise<void> failed;
  const std::shared_future<void> has_failed = failed.get_future().share();
  run_ranks(7, [&](const ProcessGroup& group) {
    if (group.rank() != 0) return has_failed.wait();
    const std::string text = message_of<TimeoutError>([&] { group.barrier({.timeout = 50ms}); });
    failed.set_value();
    expect_contains(text, {"ranks 1, 2, 3, 4, 5 and 6 did not arrive within 50 ms",
                           "they last completed none", "rank 4 at no call"});
    EXPECT_EQ(text.find("rank 5 at"), std::string::npos) << text;
  });
}

TEST(Failures, TheDeadlineHoldsForACollectiveThatNobodyWaitsFor) {
  std::promise<void> failed;
  run_ranks(2, [&](const ProcessGroup& group) {
    if (group.rank() == 1) return failed.get_future().wait();
    Work work = group.all_reduce(ones({3}), ReduceOp::sum, {.timeout = 50ms});
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (!work.is_done() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(work.is_done());
    EXPECT_THROW(work.wait(), TimeoutError);
    failed.set_value();
  });
}

TEST(Failures, MismatchesShowBothSidesOnEveryRank) {
  const auto differ = [](const std::function<Work(const ProcessGroup&, bool)>& call,
                         const std::vector<std::string>& parts) {
    run_ranks(3, [&](const ProcessGroup& group) {
      expect_contains(message_of<DistributedError>([&] { call(group, group.rank() == 2).wait(); }),
                      parts);
    });
  };
  differ([](const ProcessGroup& g, bool odd) { return g.all_reduce(ones({odd ? 5 : 4})); },
         {"rank 0 at all_reduce(sum) #1 of float32 of shape (4,)",
          "rank 2 at all_reduce(sum) #1 of float32 of shape (5,)"});
  differ([](const ProcessGroup& g,
            bool odd) { return g.all_reduce(ones({4}, {.dtype = odd ? float64 : float32})); },
         {"float32", "float64"});
  differ([](const ProcessGroup& g,
            bool odd) { return g.all_reduce(ones({4}), odd ? ReduceOp::max : ReduceOp::sum); },
         {"all_reduce(sum)", "all_reduce(max)"});
  differ([](const ProcessGroup& g,
            bool odd) { return odd ? g.broadcast(ones({4})) : g.all_reduce(ones({4})); },
         {"all_reduce(sum)", "broadcast(root 0)"});
  differ([](const ProcessGroup& g, bool odd) { return g.broadcast(ones({4}), odd ? 1 : 0); },
         {"root 0", "root 1"});
  differ(
      [](const ProcessGroup& g, bool odd) {
        return g.all_reduce(ones({4}), ReduceOp::sum,
                            {.name = odd ? "layer3.0.bn1" : "layer3.0.bn2"});
      },
      {"layer3.0.bn1", "layer3.0.bn2"});
}

TEST(Failures, AResultThatCannotBeComputedFailsOnEveryRank) {
  const auto ranks = local::make_world({.size = 2, .timeout = 60s});
  const auto rank = [&](std::size_t r) {
    const std::shared_ptr<Backend>& backend = ranks[r];
    // Computing on an undefined tensor throws, as it would where memory runs out. ProcessGroup
    // never lets one through.
    Collective call{.operation = Operation::all_reduce, .options = {.timeout = 60s}, .sequence = 1};
    call.fingerprint = fingerprint(call);
    expect_contains(message_of<DistributedError>([&] { backend->submit(call)->wait(); }),
                    {"all_reduce #1", "could not compute the result"});
    EXPECT_THROW(backend->submit({.options = {.timeout = 60s}, .sequence = 2}), DistributedError);
  };
  std::jthread other(rank, 1);
  rank(0);
}

TEST(Failures, AbortReachesARankThatWaits) {
  run_ranks(2, [&](const ProcessGroup& group) {
    if (group.rank() == 0) group.abort("parameter 'head.weight' got no gradient");
    else
      expect_contains(message_of<DistributedError>([&] { group.barrier(); }),
                      {"rank 0 gave up", "head.weight"});
  });
}

TEST(Failures, ANaNOnOneRankIsNeverHidden) {
  run_ranks(2, [&](const ProcessGroup& group) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max})
      for (const int bad : {0, 1}) {
        const Tensor x = full({3}, group.rank() == bad ? std::nan("") : 1);
        group.all_reduce(x, op).wait();
        EXPECT_TRUE(std::isnan(to_vector(x)[0])) << to_string(op);
      }
  });
}

}  // namespace
}  // namespace tutti
