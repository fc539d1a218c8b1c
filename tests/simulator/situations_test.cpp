// Situations that a seed seldom draws, and what the ranks must make of them.
#include "../distributed/messages.h"
#include "devices.h"
#include "operations.h"
#include "training.h"

#include <tutti/core/create.h>
#include <tutti/distributed/backend.h>
#include <tutti/distributed/backends/mpi/library.h>
#include <tutti/distributed/backends/mpi/mpi.h>

#include <gtest/gtest.h>

#include <thread>

namespace tutti::simulator {
namespace {

using namespace std::chrono_literals;
using test::expect_contains;

Job run_job(const Layout& layout, const std::function<void(int)>& main) {
  return simulate(layout, 1, 120 * second, [&](int rank) -> std::uint64_t {
    main(rank);
    return 0;
  });
}

// More blocks than are under way at a time, the last of them so short that its messages are sent
// before anybody asks for them.
TEST(Situations, LargeDataMovesInBlocksWhoseMemoryIsUsedAgain) {
  expect_success(simulate_large_operations({.host_sizes = {2}}, 1, 3 * (2 << 18) + 5000));
  expect_success(simulate_large_operations({.host_sizes = {1, 1}}, 1, 3 * (1 << 20) + 5000));
}

TEST(Situations, HostsThatIssueDifferentCallsDisagree) {
  enum { name, root, op };
  for (const std::vector<int>& hosts : {std::vector{1, 1}, {2, 2}})
    for (const int differs : {name, root, op})
      for (const std::int64_t n : {5, 100'000}) {
        const Job job = run_job({.host_sizes = hosts}, [&](int rank) {
          const ProcessGroup group = join_world(rank, 2 * hosts[0]);
          const bool is_other = rank >= hosts[0];
          const Tensor x = ones({n});
          if (differs == root) return group.broadcast(x, is_other).wait();
          using distributed::ReduceOp;
          group
              .all_reduce(x, differs == op && is_other ? ReduceOp::max : ReduceOp::sum,
                          {.name = differs == name && is_other ? "gradient of b" : "gradient of a"})
              .wait();
        });
        for (const Outcome& rank : job.ranks)
          expect_contains(rank.error, {"the ranks are at different calls: rank 0 at "});
      }
}

TEST(Situations, EveryRankLearnsOfAFailure) {
  for (const std::vector<int>& hosts : {std::vector{5}, {1, 1, 1}}) {
    const Layout layout{.host_sizes = hosts};
    const Job job = run_job(layout, [&](int rank) {
      const ProcessGroup group = join_world(rank, layout.ranks());
      if (rank == 0) return group.abort("the disk is full");
      std::this_thread::sleep_for(1s);
      group.barrier();
    });
    for (std::size_t r = 1; r < job.ranks.size(); ++r)
      expect_contains(job.ranks[r].error, {"the disk is full"});
  }
}

// Ranks 3 and 1 of the world are ranks 0 and 1 of their half.
TEST(Situations, ARankThatDepartsFromASubgroupIsNamedLongBeforeTheDeadline) {
  const Job job = run_job({.host_sizes = {4}}, [](int rank) {
    const ProcessGroup half = join_world(rank, 4).split(rank % 2, -rank);
    if (rank == 3) return;
    half.barrier();
    std::this_thread::sleep_for(3s);
  });
  expect_contains(job.ranks[1].error, {"rank 0 ", "its process is exiting"});
}

TEST(Situations, ARankOfASubgroupIsAskedWhereItIs) {
  for (const std::vector<int>& hosts : {std::vector{4}, {1, 1, 1, 1}}) {
    const Job job = run_job({.host_sizes = hosts}, [](int rank) {
      const ProcessGroup world = join_world(rank, 4), half = world.split(rank % 2, -rank);
      if (rank == 1) return half.barrier();
      distributed::Work alone;
      if (rank == 3) alone = world.all_reduce(ones({5}), {}, {.name = "alone"});
      std::this_thread::sleep_for(20s);
    });
    expect_contains(job.ranks[1].error, {"rank 0 did not arrive within 5 s", "(alone, "});
  }
}

// Rank 1 does its part and exits, and rank 0 learns that before its message comes.
TEST(Situations, AMessageOfARankThatHasDepartedIsWaitedFor) {
  const Fault late{.kind = Fault::Kind::delay,
                   .rank = 0,
                   .other = 1,
                   .begin = 555 * millisecond,
                   .duration = 190 * millisecond};
  expect_success(run_job({.host_sizes = {2}, .fault = late}, [](int rank) {
    const ProcessGroup group = join_world(rank, 2);
    if (rank == 1) std::this_thread::sleep_for(700ms);  // rank 0 asks after 750
    group.all_reduce(ones({5})).wait();
  }));
}

// Rank 3 gives up, comes again and reports to rank 2, whom that reaches after the barrier.
TEST(Situations, ALaterBarrierTakesNoMessagesOfAnEarlierOne) {
  const Fault late{.kind = Fault::Kind::delay,
                   .rank = 2,
                   .other = 3,
                   .begin = 2900 * millisecond,
                   .duration = 1 * second};
  const Job job = run_job({.host_sizes = {1, 1, 1, 1}, .fault = late}, [](int rank) {
    constexpr std::chrono::milliseconds comes[] = {2500ms, 3500ms, 0ms, 1000ms};
    distributed::mpi::initialize({.rank = rank, .size = 4, .timeout = timeout});
    try {
      if (rank == 3) distributed::mpi::make_world({.rank = rank, .timeout = 1s});
    } catch (const TimeoutError&) {}
    std::this_thread::sleep_for(comes[rank]);
    const ProcessGroup first = join_world(rank, 4);
    if (rank == 3) std::this_thread::sleep_for(12s);
    else distributed::mpi::make_world({.rank = rank, .timeout = 2s});
  });
  for (const std::size_t r : {0, 1, 2})
    expect_contains(job.ranks[r].error, {"rank 3 did not come"});
}

// Runs main(world, sum), where sum(group) starts an all-reduce on the device, on each of 16 ranks.
template <class Main>
Job run_on_devices(const Main& main) {
  return run_job({.host_sizes = {8, 5, 3}, .in_turns = true, .jitter = 30 * microsecond},
                 [&](int rank) {
                   const ProcessGroup world = join_world(rank, 16);
                   use_device(world);
                   main(world, [](const ProcessGroup& group, std::int64_t n = 5) {
                     return group.all_reduce(on_device(ones({n})));
                   });
                 });
}

// Those that wait ask where it is, and go on.
TEST(Devices, ARankThatIsLateIsWaitedFor) {
  expect_success(run_on_devices([](const ProcessGroup& world, const auto& sum) {
    for (const int late : {0, 11}) {
      if (world.rank() == late) std::this_thread::sleep_for(4s);
      wait_for_result(sum(world));
    }
  }));
}

TEST(Devices, ARankThatDoesNotComeIsNamed) {
  const Job job = run_on_devices([](const ProcessGroup& world, const auto& sum) {
    sum(world).wait();
    if (world.rank() == 11) std::this_thread::sleep_for(20s);
    sum(world).wait();
    world.barrier();
  });
  for (const Outcome& rank : std::span(job.ranks).first(11))  // which then end the job
    expect_contains(rank.error, {"all_reduce #2 of group 'world'",
                                 "rank 11 did not arrive within 5 s; it last completed #1"});
}

TEST(Devices, CallsThatDifferAreShown) {
  for (const bool is_of_host : {false, true})
    for (const bool is_first : {false, true}) {
      const Job job = run_on_devices([&](const ProcessGroup& world, const auto& sum) {
        if (!is_first) sum(world).wait();
        const bool is_odd = world.rank() == 11;
        if (is_odd && is_of_host) world.all_reduce(ones({5})).wait();
        else sum(world, is_odd ? 6 : 5).wait();
        world.barrier();
      });
      for (const Outcome& rank : job.ranks)
        expect_contains(rank.error, {"the ranks are at different calls: ", "rank 11 at "});
      EXPECT_LT(job.end, 5 * second);
    }
}

// The odd ranks 15, 13, ..., 1 are the ranks 0, 1, ..., 7 of their half. Either rank 11 does not
// come, or rank 1 waits alone, who asks rank 0 of the half and no other.
TEST(Devices, ARankThatLivesOnWithoutTheGroupIsNamed) {
  for (const bool is_alone : {false, true}) {
    const Job job = run_on_devices([&](const ProcessGroup& world, const auto& sum) {
      const int rank = world.rank();
      {
        const ProcessGroup half = world.split(rank % 2, -rank);
        sum(half).wait();
        if (is_alone ? rank == 1 : rank % 2 && rank != 11) sum(half).wait();
      }
      std::this_thread::sleep_for(3s);
      world.barrier();
    });
    const char* const who = is_alone ? "rank 0 will never" : "rank 2 will never";
    for (const Outcome& rank : job.ranks)
      expect_contains(rank.error, {"all_reduce #2 of group 'world/split1'", who,
                                   "its group has been destroyed"});
  }
}

// While other ranks receive, whoever has released a group keeps its part of the lane.
TEST(Devices, GroupsAreReleasedInAnyOrder) {
  expect_success(run_on_devices([](const ProcessGroup& world, const auto& sum) {
    std::vector<ProcessGroup> groups;
    for (int i = 0; i < 6; ++i) groups.push_back(world.split(i % 3 ? world.rank() % 2 : 0));
    for (const ProcessGroup& group : groups) sum(group).wait();
    world.barrier();
    for (; !groups.empty();
         std::this_thread::sleep_for(std::chrono::milliseconds(random()() % 200)))
      groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(random()() % groups.size()));
    std::this_thread::sleep_for(2s);
    if (!world.implementation()->world()->lanes().empty())
      throw std::runtime_error("a lane is left");
  }));
}

// The application initialises MPI and finalises it, on rank 0 while rank 1 has yet to come.
TEST(Devices, EndTheirCallsBeforeMpiIsFinalised) {
  for (const bool is_at_exit : {false, true})
    expect_success(run_job({.host_sizes = {2}}, [&](int rank) {
      int provided = 0;
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
      if (is_at_exit) std::atexit([] { MPI_Finalize(); });
      for (int i = 0; i < 2; ++i) {
        const ProcessGroup group = join_world(rank, 2);
        use_device(group);
        const Tensor x = on_device(ones({5}));
        group.all_reduce(x).wait();
        if (rank == 1) std::this_thread::sleep_for(1s);
        group.all_reduce(x).wait();
      }
      if (!is_at_exit) MPI_Finalize();
    }));
}

}  // namespace
}  // namespace tutti::simulator
