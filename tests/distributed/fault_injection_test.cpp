// Injected faults in ranks that are threads: what the other ranks see, the deadline of work that
// nobody waits for, and groups in a forked process. Faults of processes are in tests/mpi.
#include "messages.h"
#include "process.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/distributed/backend.h>
#include <tutti/distributed/data_parallel/data_parallel.h>
#include <tutti/distributed/diagnostics/fault_injection.h>
#include <tutti/nn/batch_norm/sync_batch_norm.h>

#include <poll.h>
#include <unistd.h>

#include <future>
#include <thread>

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;
using test::expect_contains;
using test::message_of;

TEST(Fault, IsReadFromAText) {
  const auto faults = parse_faults(
      "rank=1,collective=8,action=kill;action=delay,rank=0,collective=2,delay=30,group=world/"
      "normalization;rank=2,when=exit,action=stop");
  ASSERT_EQ(faults.size(), 3u);
  EXPECT_EQ(faults[0].action, Fault::Action::kill);
  EXPECT_EQ(faults[0].rank, 1);
  EXPECT_EQ(faults[0].collective, 8);
  EXPECT_EQ(faults[0].group, "world");
  EXPECT_EQ(faults[0].when, Fault::Moment::call);
  EXPECT_EQ(faults[1].action, Fault::Action::delay);
  EXPECT_EQ(faults[1].delay, 30ms);
  EXPECT_EQ(faults[1].group, "world/normalization");
  EXPECT_EQ(faults[2].when, Fault::Moment::exit);
  EXPECT_TRUE(parse_faults("").empty());
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {"rank=1,collective=8", "expected something like"},
           {"action=kill,collective=8", "expected something like"},
           {"rank=1,action=kill", "expected something like"},
           {"rank=-1,collective=8,action=kill", "rank must be a whole number from 0, got '-1'"},
           {"rank=1,collective=0,action=kill", "collective must be a whole number from 1"},
           {"rank=1,collective=8x,action=kill", "got '8x'"},
           {"rank=1,collective=8,action=explode",
            "delay, drop, raise, exit, stop, kill, got 'explode'"},
           {"rank=1,collective=8,action=kill,sometimes", "got 'sometimes'"},
           {"rank=1,action=drop,when=exit", "drop goes with when=call"},
           {"rank=1,action=exit,when=data,collective=1", "exit does not go with when=data"}})
    expect_contains(message_of<ValueError>([&wrong = text] { parse_faults(wrong); }), {says});
}

TEST(Fault, ADelayedRankIsWaitedFor) {
  const InjectFault fault(
      {.action = Fault::Action::delay, .rank = 1, .collective = 2, .delay = 100ms});
  run_ranks(
      3,
      [](const ProcessGroup& group) {
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < 3; ++i) {
          const Tensor x = full({4}, group.rank());
          group.all_reduce(x).wait();
          EXPECT_EQ(to_vector(x), std::vector<double>(4, 3));
        }
        EXPECT_GE(std::chrono::steady_clock::now() - begin, 100ms);
      },
      60s);
}

TEST(Fault, ADroppedCallIsNamedByTheOthersAndFailsItsOwnRank) {
  const InjectFault fault({.action = Fault::Action::drop, .rank = 1, .collective = 3});
  std::promise<void> rank_0_is_there;
  run_ranks(
      3,
      [&](const ProcessGroup& group) {
        for (int i = 0; i < 2; ++i) group.all_reduce(ones({4})).wait();
        // Only the rank that comes last has a short deadline, so no other rank can miss it, however
        // busy the machine is.
        if (group.rank() == 2) rank_0_is_there.get_future().wait();
        const auto timeout = group.rank() == 2 ? 100ms : 60s;
        Work work =
            group.all_reduce(ones({4}), ReduceOp::sum, {.name = "bucket 2", .timeout = timeout});
        if (group.rank() == 0) rank_0_is_there.set_value();
        expect_contains(message_of<TimeoutError>([&] { Work(work).wait(); }),
                        {"all_reduce #3 of group 'world' (bucket 2, 16 B)",
                         "rank 1 did not arrive within 100 ms; it last completed #2"});
        EXPECT_TRUE(work.is_done());
      },
      60s);
}

// The error output of this process, from the constructor on.
class CapturedErrors {
 public:
  CapturedErrors() : before_(dup(2)) {
    if (pipe(pipe_) == 0) dup2(pipe_[1], 2);
  }
  ~CapturedErrors() {
    dup2(before_, 2);
    for (const int fd : {before_, pipe_[0], pipe_[1]}) close(fd);
  }
  // Waits for this text up to 20 s and returns what has been printed.
  std::string wait_for(const std::string& text) {
    std::string printed;
    pollfd readable{pipe_[0], POLLIN, 0};
    char buffer[4096];
    while (printed.find(text) == std::string::npos && poll(&readable, 1, 20000) > 0)
      printed.append(buffer, static_cast<std::size_t>(
                                 std::max<ssize_t>(0, read(pipe_[0], buffer, sizeof buffer))));
    return printed;
  }

 private:
  int before_, pipe_[2] = {-1, -1};
};

TEST(Fault, TheErrorOfTheOthersIsPrintedWhileARankHangs) {
  // Rank 1 hangs outside of collectives until the text is there, which run_ranks() could not throw.
  std::string printed;
  {
    CapturedErrors errors;
    expect_contains(message_of<TimeoutError>([&] {
                      run_ranks(
                          2,
                          [&](const ProcessGroup& group) {
                            if (group.rank() == 1) printed = errors.wait_for("until all ranks");
                            else group.barrier();
                          },
                          200ms);
                    }),
                    {"rank 1 did not arrive within 200 ms"});
  }
  expect_contains(printed, {"tutti: run_ranks: rank 0 failed: barrier #1 of group 'world'",
                            "rank 1 did not arrive within 200 ms",
                            "rank 1 has not returned within 200 ms of that"});
}

TEST(Fault, AFaultThatIsGoneAffectsNobody) {
  { const InjectFault fault({.rank = 0}); }
  run_ranks(2, [](const ProcessGroup& group) { group.barrier(); });
}

// Each rank throws in turn, at each kind of collective. The other ranks' exceptions carry the
// cause.
TEST(Fault, AThrowAnywhereReachesEverybodyWithItsCause) {
  struct Where {
    std::string group;
    std::int64_t collective;
  };
  const auto train = [](const ProcessGroup& group) {
    nn::SyncBatchNorm layer({.channels = 3, .group = group});
    const Tensor head = ones({40000}).requires_grad_();
    DataParallel ddp({{"weight", layer.weight}, {"bias", layer.bias}, {"head", head}}, {}, group,
                     {.first_bucket_mb = 0.1});
    for (int step = 0; step < 3; ++step) {
      layer.zero_grad();
      head.set_grad({});
      (sum(layer(full({2, 3}, group.rank() + 1.0).requires_grad_())) + sum(head)).backward();
    }
  };
  // The first collectives of the world construct DataParallel, the 5th tells the order of the
  // gradients. Of the normalization group, the 1st is a forward, the 4th a backward.
  for (const Where& where : {Where{"world", 1}, Where{"world", 5}, Where{"world/normalization", 1},
                             Where{"world/normalization", 3}, Where{"world/normalization", 4}})
    for (int bad = 0; bad < 3; ++bad) {
      SCOPED_TRACE(fmt::format("rank {} at #{} of {}", bad, where.collective, where.group));
      const InjectFault fault({.rank = bad, .collective = where.collective, .group = where.group});
      std::vector<std::string> seen(3);
      const std::string cause = message_of<InjectedError>([&] {
        run_ranks(
            3,
            [&](const ProcessGroup& group) {
              if (group.rank() == bad) return train(group);
              seen[static_cast<std::size_t>(group.rank())] =
                  message_of<DistributedError>([&] { train(group); });
            },
            60s);
      });
      for (int r = 0; r < 3; ++r)
        if (r != bad)
          expect_contains(seen[static_cast<std::size_t>(r)],
                          {fmt::format("rank {} failed", bad), cause});
    }
}

TEST(Watcher, WorkThatNobodyWaitsForKeepsItsDeadline) {
  std::promise<void> rank_0_is_there, seen;
  run_ranks(
      3,
      [&](const ProcessGroup& group) {
        group.barrier();
        if (group.rank() == 2) return seen.get_future().wait();  // never comes to #2
        if (group.rank() == 1) rank_0_is_there.get_future().wait();
        const auto timeout = group.rank() == 1 ? 100ms : 60s;
        Work work =
            group.all_reduce(ones({4}), ReduceOp::sum, {.name = "bucket 4", .timeout = timeout});
        if (group.rank() == 0) rank_0_is_there.set_value();
        while (!work.is_done()) std::this_thread::sleep_for(1ms);
        const std::string text = message_of<TimeoutError>([&] { group.barrier(); });
        expect_contains(
            text,
            {"barrier #3", "the group has failed: all_reduce #2 of group 'world' (bucket 4, 16 B)",
             "rank 2 did not arrive within 100 ms; it last completed #1"});
        if (group.rank() == 0) {
          while (!group.implementation()->failure()) std::this_thread::sleep_for(1ms);
          seen.set_value();
        }
      },
      60s);
}

TEST(Watcher, WorkOfASubgroupThatIsThrownAwayKeepsItsDeadline) {
  std::promise<void> seen;
  run_ranks(
      3,
      [&](const ProcessGroup& group) {
        const ProcessGroup pair = group.split(group.rank() == 2 ? 1 : 0);
        if (group.rank() == 1) return seen.get_future().wait();
        if (group.rank() == 0) {
          {
            const Work thrown_away = pair.all_reduce(ones({4}), ReduceOp::sum, {.timeout = 100ms});
          }
          while (!pair.implementation()->failure()) std::this_thread::sleep_for(1ms);
          expect_contains(message_of<TimeoutError>([&] { group.barrier(); }),
                          {"#1 of group 'world/split0'", "rank 1 did not arrive"});
          seen.set_value();
        } else {
          EXPECT_THROW(group.barrier(), DistributedError);  // all groups of the world are broken
        }
      },
      60s);
}

TEST(Fork, AChildIsToldThatTheGroupIsNotItsOwn) {
  run_ranks(
      2,
      [](const ProcessGroup& group) {
        group.barrier();
        if (group.rank() == 0) {
          const pid_t child = test::fork_beside_threads();
          if (child == 0) {
            // The child reports by its exit code only: the other threads are gone, and locks that
            // they held stay locked.
            int code = 1;
            try {
              group.barrier();
            } catch (const DistributedError& error) {
              code = std::string(error.what()).find("forked from") != std::string::npos ? 42 : 2;
            }
            group.abort("must not reach the parent");
            _exit(code);
          }
          test::expect_exit(child, 42);
        }
        group.barrier();  // the parent can go on using the group
      },
      60s);
}

TEST(Fork, AChildCannotWaitForItsParentsWork) {
  run_ranks(
      2,
      [](const ProcessGroup& group) {
        const Tensor x = ones({4});
        Work work = group.all_reduce(x);
        if (group.rank() == 0) {
          const pid_t child = test::fork_beside_threads();
          if (child == 0) {
            int code = work.is_done() ? 1 : 3;
            try {
              work.wait();
            } catch (const DistributedError& error) {
              code = std::string(error.what()).find("forked from") != std::string::npos ? code + 41
                                                                                        : 2;
            }
            _exit(code);
          }
          test::expect_exit(child, 42);
        }
        work.wait();
        EXPECT_EQ(to_vector(x), std::vector<double>(4, 2));
      },
      60s);
}

TEST(Fork, AChildMayMakeGroupsOfItsOwn) {
  const pid_t child = fork();
  if (child == 0) {
    int sum = 0;
    run_ranks(
        2,
        [&](const ProcessGroup& group) {
          const Tensor x = ones({1});
          group.all_reduce(x).wait();
          if (group.rank() == 0) sum = x.item<int>();
        },
        20s);
    _exit(sum == 2 ? 42 : 1);
  }
  test::expect_exit(child, 42);
}

}  // namespace
}  // namespace tutti
