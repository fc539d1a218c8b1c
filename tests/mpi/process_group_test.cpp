// Tests of groups whose ranks are MPI processes: the conformance suite, and what only processes can
// get wrong.
#include "../distributed/conformance.h"
#include "../distributed/lifecycle_case.h"
#include "../distributed/messages.h"
#include "../distributed/process.h"
#include "../distributed/resources.h"
#include "emulated_hosts.h"
#include "launched.h"

#include <tutti/distributed/backends/mpi/mpi.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;

TEST(Mpi, TheWorldIsWhatMpirunStarted) {
  EXPECT_EQ(world().backend(), "mpi");
  EXPECT_EQ(std::to_string(world().size()), test::launched_size());
  EXPECT_EQ(std::to_string(world().rank()), test::launched_rank());
  EXPECT_EQ(std::to_string(world().local_rank()), test::launched_local_rank());
}

TEST(Mpi, Conforms) { test::check_conformance(world()); }

TEST(Mpi, LargeOnesAreReducedInRankOrderToo) {
  if (!test::adds_in_rank_order(world(), Device::cpu()))
    GTEST_SKIP()
        << "ranks on several hosts add host by host; EqualsRanksAsThreadsToTheBit has that";
  // The tensor has more than one block of the pipeline, and no number of ranks divides its size.
  const std::int64_t n = (std::int64_t{1} << 19) * world().size() + 12345;
  std::vector<Tensor> ranks;
  for (int r = 0; r < world().size(); ++r) ranks.push_back(test::contributed(bfloat16, {n}, r));
  const Tensor mine = ranks[static_cast<std::size_t>(world().rank())].clone();
  world().all_reduce(mine, ReduceOp::mean).wait();
  EXPECT_TRUE(to_vector(mine) == test::reference(bfloat16, ReduceOp::mean, ranks));
}

TEST(Mpi, HostsCanBeEmulated) {
  setenv("TUTTI_RANKS_PER_HOST", "2", 1);
  test::check_emulated_hosts(world());
  unsetenv("TUTTI_RANKS_PER_HOST");
}

TEST(Mpi, EqualsRanksAsThreadsToTheBit) {
  // With more than 8 ranks, the middle size no longer travels with its fingerprint.
  static_assert(mpi::inline_limit(2) == 65536 && mpi::inline_limit(8) == 65536 &&
                mpi::inline_limit(12) == 43690 && mpi::inline_limit(64) == 8192 &&
                mpi::inline_limit(4096) == 8192);
  const auto compare = [](DType dtype, ReduceOp op, std::int64_t n) {
    const Tensor here = test::contributed(dtype, {n}, world().rank());
    world().all_reduce(here, op).wait();
    run_ranks(
        world().size(),
        [&](const ProcessGroup& threads) {
          const Tensor there = test::contributed(dtype, {n}, threads.rank());
          threads.all_reduce(there, op).wait();
          EXPECT_TRUE(to_vector(there) == to_vector(here)) << to_string(dtype) << " x " << n;
        },
        test::as_these_processes());
  };
  for (const std::int64_t n : {33, 12000, 100000}) {
    compare(float32, ReduceOp::mean, n);
    compare(float64, ReduceOp::sum, n);
    compare(bfloat16, ReduceOp::mean, n);
    compare(float16, ReduceOp::sum, n);
  }
  // Several pieces between hosts. Each process computes all ranks, for which many have no memory.
  if (world().size() <= 4) compare(bfloat16, ReduceOp::mean, (std::int64_t{3} << 20) + 12345);
}

TEST(Mpi, TheMinimumAndTheMaximumKeepNaN) {
  const double nan = std::nan("");
  for (const DType dtype : {float32, float64, bfloat16, float16})
    for (const std::int64_t n : {3, 40000})
      for (const ReduceOp op : {ReduceOp::min, ReduceOp::max})
        for (int bad = 0; bad < world().size(); ++bad) {
          const Tensor x = full({n}, world().rank(), {.dtype = dtype});
          if (world().rank() == bad) x.slice(0, n - 2, n - 1).copy_(full({1}, nan));
          world().all_reduce(x, op).wait();
          const auto values = to_vector(x);
          const auto at = static_cast<std::size_t>(n);
          EXPECT_TRUE(std::isnan(values[at - 2])) << to_string(dtype) << " x " << n;
          EXPECT_EQ(values[at - 1], op == ReduceOp::min ? 0 : world().size() - 1);
        }
}

TEST(Mpi, CallsOfSeveralGroupsMayBeWaitedForInAnyOrder) {
  // No rank carries out what another one waits for, unless the watcher sees to it.
  const ProcessGroup one = world().split(0), other = world().split(0);
  const Tensor a = ones({5}), b = ones({7});
  Work first = one.all_reduce(a), second = other.all_reduce(b);
  if (world().rank() % 2 == 0) std::swap(first, second);
  first.wait();
  second.wait();
  EXPECT_EQ(a.select(0, 4).item<int>(), world().size());
  EXPECT_EQ(b.select(0, 6).item<int>(), world().size());
}

TEST(Mpi, ManyGroupsComeAndGo) {
  for (int i = 0; i < 20; ++i) {
    const ProcessGroup group = ProcessGroup::from_environment(60s);
    const Tensor x = ones({30000});
    Work unwaited_until_the_group_is_gone = group.split(0).all_reduce(x);
    unwaited_until_the_group_is_gone.wait();
    EXPECT_EQ(x.select(0, 7).item<int>(), group.size());
  }
}

TEST(Mpi, AGroupMayGoBeforeItsWork) { test::check_a_group_may_go_before_its_work(world()); }

TEST(Mpi, AHundredGroupsLeaveNothingBehind) {
  const auto cycle = [] {
    const ProcessGroup half = world().split(world().rank() % 2);
    for (const std::int64_t n : {100, 30000}) half.all_reduce(ones({n})).wait();
    { const Work thrown_away = half.all_reduce(ones({10})); }
    half.barrier();
  };
  // Starts the watcher and the communication thread. Otherwise a small call between hosts starts
  // the latter where the watcher looks before the caller has come to wait.
  world().all_reduce(ones({30000})).wait();
  auto before = test::Resources::now();
  const auto hundred = [&] {
    for (int i = 0; i < 100; ++i) cycle();
    const auto after = test::Resources::settled(before);
    return static_cast<double>(after.heap) - static_cast<double>(std::exchange(before, after).heap);
  };
  hundred();
  world().barrier();
  const auto first = before;
  // A leak grows in every hundred cycles; what MPI keeps for reuse does not.
  const double grown = std::min({hundred(), hundred(), hundred()});
  EXPECT_LT(grown, 16 << 10);
  test::expect_nothing_left(first, 256 << 10);
}

TEST(Mpi, WorldsThatFailComeAndGo) {
  // A failed world keeps its communicators on purpose (Communicator::abandon): up to 48 kB per
  // world have been seen, and up to 69 kB where a group on several hosts has three of them.
  const std::int64_t kept = test::adds_in_rank_order(world(), Device::cpu()) ? 64 << 10 : 96 << 10;
  const auto cycle = [](int i) {
    const ProcessGroup group = ProcessGroup::from_environment(60s);
    const auto work = [&] {
      for (const std::int64_t n : {100, 30000}) group.all_reduce(ones({n})).wait();
      group.barrier();  // no rank fails while another moves data, whose memory MPI would keep
    };
    const bool bad = group.rank() == i % group.size();
    if (i % 2 == 1) {
      test::expect_contains(
          test::message_of<DistributedError>([&] {
            work();  // the others may get the failure while they wait in the barrier
            group.all_reduce(ones({bad ? 7 : 8})).wait();
          }),
          {"the ranks are at different calls", "float32 of shape (7,)"});
    } else {
      test::expect_contains(test::message_of<DistributedError>([&] {
                              work();
                              if (bad) group.abort("gave up");
                              for (;;) group.barrier();
                            }),
                            {"gave up"});
    }
    EXPECT_THROW(group.for_normalization().barrier(), DistributedError);
  };
  for (int i = 0; i < 10; ++i) cycle(i);
  const auto before = test::Resources::now();
  for (int i = 0; i < 100; ++i) cycle(i);
  test::expect_nothing_left(before, 100 * kept);
  EXPECT_EQ(ProcessGroup::from_environment(60s).size(),
            std::stoi(test::launched_size()));  // world() works again
}

TEST(Mpi, AChildOfAForkIsToldAndEndsInPeace) {
  world()
      .all_reduce(ones({30000}))
      .wait();  // starts a communication thread, which the child does not have
  Work small = world().all_reduce(ones({3})), large = world().all_reduce(ones({30000}));
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    int code = 1;
    try {
      world().barrier();
    } catch (const DistributedError& error) {
      code = std::string(error.what()).find("forked from") != std::string::npos ? 42 : 2;
    }
    for (Work* work : {&small, &large})
      if (!work->is_done() || test::message_of<DistributedError>([&] {
                                work->wait();
                              }).find("forked from") == std::string::npos)
        code = 3;
    if (test::message_of<DistributedError>([] {
          ProcessGroup::from_environment(1s);
        }).find("forked from") == std::string::npos)
      code = 4;
    std::exit(code);  // runs all destructors, of which none may touch MPI
  }
  test::expect_exit(child, 42);
  small.wait();
  large.wait();
  world().barrier();
}

}  // namespace
}  // namespace tutti
