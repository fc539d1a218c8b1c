// Tests of the NCCL backend over the fake NCCL of tests/emulator at its worst: devices that run one
// collective at a time, splits that fail or hang on one rank, and calls that wait for other ranks.
// They run in the emulator only.
#include "../distributed/messages.h"
#include "../test_device.h"

#include <tutti/core/create.h>
#include <tutti/core/cuda/graph.h>
#include <tutti/core/cuda/runtime.h>
#include <tutti/core/cuda/stream.h>
#include <tutti/core/memory.h>
#include <tutti/distributed/backends/nccl/nccl.h>
#include <tutti/distributed/launch/launch.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;
using test::expect_contains;
using test::message_of;

// Sets a variable of the environment, and afterwards another value; removes it where that is null.
class Variable {
 public:
  Variable(const char* name, const std::string& value, const char* afterwards = nullptr)
      : name_(name), afterwards_(afterwards) {
    setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (afterwards_) setenv(name_, afterwards_, 1);
    else unsetenv(name_);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char *name_, *afterwards_;
};

// What the ranks have asked of their store.
struct Requests {
  std::atomic<int> reads = 0;  // of the reports of all ranks
  std::atomic<int> ids = 0;    // written, each for a communicator that a group needs to be split
};

// A store that counts requests.
class CountingStore : public rendezvous::Store {
 public:
  CountingStore(std::shared_ptr<rendezvous::Store> store, Requests& counts)
      : Store(store->member()), store_(std::move(store)), counts_(counts) {}
  std::string where() const override { return store_->where(); }

 private:
  rendezvous::Values carry_out(const rendezvous::Request& request) override {
    using Operation = rendezvous::Request::Operation;
    if (request.operation == Operation::list && request.key == "state/") ++counts_.reads;
    if (request.operation == Operation::set && request.key.starts_with("id/")) ++counts_.ids;
    return store_->request(request);
  }
  std::shared_ptr<rendezvous::Store> store_;
  Requests& counts_;
};

class HostileNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = nccl::why_unavailable(); !why.empty()) GTEST_SKIP() << why;
    if (!test::emulated()) GTEST_SKIP() << "needs the fake NCCL of the emulator";
    nccl::set_environment();
    const char* seed = std::getenv("TUTTI_EMULATOR_SEED");
    std::printf("TUTTI_EMULATOR_SEED=%s\n", seed ? seed : "1");
  }
  static constexpr int ranks = 4;
  static Device own(const ProcessGroup& group) { return Device::cuda(group.local_rank()); }
  static void run(const std::function<void(const ProcessGroup&)>& fn,
                  std::chrono::milliseconds timeout) {
    run_ranks(ranks, fn, {.backend = "nccl", .timeout = timeout});
  }
  // The same with groups that the test makes itself, over stores that count in `requests`.
  static void run_counting(Requests& requests, const std::function<void(const ProcessGroup&)>& fn,
                           std::chrono::milliseconds timeout = 60s) {
    const auto table = std::make_shared<rendezvous::SharedTable>();
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        const auto store = std::make_shared<CountingStore>(
            rendezvous::in_memory(table, {rank, ranks, {}, timeout}), requests);
        fn(ProcessGroup(nccl::make_world(store, {.local_rank = rank})));
      });
  }
  // Issues one collective on each of two groups, both ready at once, and waits for both.
  static void issue_on_both(const ProcessGroup& first, const ProcessGroup& second) {
    const Tensor a = ones({10}, {.device = own(first)}), b = ones({10}, {.device = own(first)});
    Work one = first.all_reduce(a), two = second.all_reduce(b);
    one.wait();
    two.wait();
    first.barrier();
    EXPECT_EQ(to_vector(a), std::vector<double>(10, first.size()));
    EXPECT_EQ(to_vector(b), std::vector<double>(10, second.size()));
  }
};

TEST_F(HostileNccl, OneOrderOnAllRanksSufficesOnDevicesThatRunOneCollectiveAtATime) {
  run(
      [](const ProcessGroup& group) {
        for (int i = 0; i < 20; ++i)
          issue_on_both(i % 2 ? group : group.for_normalization(),
                        i % 2 ? group.for_normalization() : group);
      },
      60s);
}

TEST_F(HostileNccl, WithoutAnOrderOfLaunchesTwoGroupsMayWaitForEachOther) {
  const Variable order("NCCL_LAUNCH_ORDER_IMPLICIT", "0", "1");
  std::atomic<int> late = 0;
  run(
      [&](const ProcessGroup& group) {
        const std::string text = message_of<TimeoutError>([&] {
          for (int i = 0; i < 100; ++i) issue_on_both(group, group.for_normalization());
        });
        expect_contains(text, {"all ranks have issued it, but it did not end within"});
        ++late;
      },
      1s);
  EXPECT_EQ(late, ranks);
}

TEST_F(HostileNccl, AnOldNcclIsGivenNoGraphWithTwoCommunicators) {
  const Variable version("TUTTI_FAKE_NCCL_VERSION", "22500");
  run(
      [](const ProcessGroup& group) {
        const Tensor x = ones({10}, {.device = own(group)}), y = x.clone();
        const auto reduce = [](const ProcessGroup& in, const Tensor& what) {
          in.all_reduce(what).wait();
        };
        cuda::Graph one(own(group), [&] { reduce(group, x), reduce(group, x); });
        const std::string text = message_of<DeviceError>([&] {
          const cuda::Graph both(own(group), [&] {
            reduce(group, x);
            reduce(group.for_normalization(), y);
          });
        });
        expect_contains(text, {"'world' and 'world/normalization'", "2.26 or later, found 2.25"});
        one.replay();
        EXPECT_EQ(to_vector(x), std::vector<double>(10, group.size() * group.size()));
        group.barrier();
      },
      60s);
}

TEST_F(HostileNccl, OrdersThatDifferBetweenRanksAreFound) {
  run(
      [](const ProcessGroup& group) {
        const ProcessGroup other = group.for_normalization();
        const std::string text = message_of<TimeoutError>([&] {
          if (group.rank() == 2) issue_on_both(other, group);
          else issue_on_both(group, other);
        });
        expect_contains(text, {"all ranks have issued it, but it did not end within"});
      },
      1s);
}

TEST_F(HostileNccl, ASplitThatFailsOnOneRankFailsAllAtOnce) {
  const Variable fault("TUTTI_FAKE_NCCL_SPLIT", "1.2:fail");
  const auto began = std::chrono::steady_clock::now();
  run(
      [](const ProcessGroup& group) {
        const std::string text = message_of<DistributedError>([&] {
          const ProcessGroup part = group.split(group.rank() % 2);
          group.barrier();
        });
        expect_contains(text, {"creating group", "ncclCommSplit failed"});
        if (group.rank() != 1) expect_contains(text, {"rank 1"});
      },
      60s);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);
}

TEST_F(HostileNccl, ASplitThatHangsOnOneRankEndsAtTheDeadline) {
  const Variable fault("TUTTI_FAKE_NCCL_SPLIT", "1.2:hang");
  run(
      [](const ProcessGroup& group) {
        const std::string text = message_of<TimeoutError>([&] {
          const ProcessGroup part = group.split(0);
          part.barrier();
        });
        expect_contains(text, {"creating group", "1 s"});
      },
      1s);
}

TEST_F(HostileNccl, ASplitThatFailsAtTheStartNamesTheRank) {
  for (const std::string fault : {"fail", "hang"}) {
    const Variable variable("TUTTI_FAKE_NCCL_SPLIT", "1.0:" + fault);
    const auto table = std::make_shared<rendezvous::SharedTable>();
    std::vector<std::jthread> threads;
    for (const int rank : {0, 1})
      threads.emplace_back([&, rank] {
        const std::string text = message_of<DistributedError>([&] {
          const ProcessGroup group(nccl::make_world(rendezvous::in_memory(table, {rank, 2, {}, 4s}),
                                                    {.local_rank = rank}));
          group.barrier();
        });
        if (fault == "fail") expect_contains(text, {"ncclCommSplit failed"});
        else expect_contains(text, {"creating ", "not all ranks were there within 4 s"});
        if (rank == 0 && fault == "fail") expect_contains(text, {"rank 1 could not start"});
      });
  }
}

TEST_F(HostileNccl, ARankThatCannotMakeAGroupsStreamFailsAllAtOnce) {
  const Variable fault("TUTTI_EMULATOR_NO_PRIORITY", "1");
  const auto began = std::chrono::steady_clock::now();
  std::atomic<int> failed = 0;
  const auto table = std::make_shared<rendezvous::SharedTable>();
  std::vector<std::jthread> threads;
  for (const int rank : {0, 1})
    threads.emplace_back([&, rank] {
      const auto world =
          nccl::make_world(rendezvous::in_memory(table, {rank, 2, {}, 60s}), {.local_rank = rank});
      expect_contains(message_of<DistributedError>([&] {
                        world->subgroup({0, 1}, "pair");
                      }),
                      {"creating group 'pair'", "rank 1: ", "cudaStreamCreateWithPriority"});
      ++failed;
      while (failed < 2) std::this_thread::sleep_for(5ms);
    });
  threads.clear();
  EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);
}

TEST_F(HostileNccl, ASplitAfterAFailureSetsNothingUp) {
  Requests requests;
  std::atomic<int> passed = 0;
  run_counting(requests, [&](const ProcessGroup& group) {
    group.barrier();
    ++passed;
    while (passed < group.size()) std::this_thread::sleep_for(1ms);  // no barrier meets the abort
    group.abort("no space left");
    std::this_thread::sleep_for(200ms);  // the watcher aborts the communicators
    expect_contains(message_of<DistributedError>([&] {
                      group.implementation()->subgroup({0, 1, 2, 3}, "late");
                    }),
                    {"creating group 'late'", "no space left"});
  });
  EXPECT_EQ(requests.ids, 0);
}

TEST_F(HostileNccl, OnlyAGroupThatIsSplitItselfNeedsACommunicatorForThat) {
  Requests requests;
  run_counting(requests, [&](const ProcessGroup& group) {
    const ProcessGroup pair = group.split(group.rank() / 2);
    issue_on_both(pair, pair.for_normalization());
    group.barrier();
    EXPECT_EQ(requests.ids, 0);
    group.barrier();
    for (int i = 0; i < 2; ++i) {
      const ProcessGroup swapped = pair.split(0, -pair.rank());
      issue_on_both(swapped, swapped.for_normalization());
    }
    group.barrier();
    EXPECT_EQ(requests.ids, 2) << "one for each pair";
  });
}

TEST_F(HostileNccl, AModeForAllCommunicatorsIsRefused) {
  const auto table = std::make_shared<rendezvous::SharedTable>();
  for (const auto& [name, value] :
       {std::pair("NCCL_COMM_BLOCKING", "0"), std::pair("NCCL_COMM_SPLIT_SHARE_RESOURCES", "1")}) {
    const Variable mode(name, value);
    expect_contains(message_of<DistributedError>([&] {
                      nccl::make_world(rendezvous::in_memory(table, {0, 1, {}, 1s}), {});
                    }),
                    {name, "unset it"});
  }
}

// The groups of a group have no parent that the world made; the ranks agree on one through the
// store.
TEST_F(HostileNccl, GroupsOfGroupsWork) {
  run(
      [](const ProcessGroup& group) {
        const ProcessGroup pair = group.split(group.rank() / 2);
        for (int i = 0; i < 3; ++i) {
          const ProcessGroup swapped = pair.split(0, -pair.rank());
          EXPECT_EQ(swapped.rank(), 1 - pair.rank());
          const Tensor x = full({10}, group.rank(), {.device = own(group)});
          swapped.all_reduce(x).wait();
          EXPECT_EQ(to_vector(x), std::vector<double>(10, group.rank() / 2 ? 5 : 1));
        }
        group.barrier();
      },
      60s);
}

TEST_F(HostileNccl, AFirstCollectiveThatWaitsInsideItsCallIsGivenUp) {
  const Variable connect("NCCL_RUNTIME_CONNECT", "1", "0");
  std::atomic<int> failed = 0;
  run(
      [&](const ProcessGroup& group) {
        if (group.rank() == 1) {
          while (failed < ranks - 1) std::this_thread::sleep_for(5ms);
          return;
        }
        expect_contains(message_of<TimeoutError>([&] { group.barrier(); }),
                        {"barrier #1 of group 'world'", "rank 1 did not arrive within 1 s"});
        ++failed;
      },
      1s);
}

TEST_F(HostileNccl, FewRanksLookWhyACollectiveTakesLong) {
  Requests requests;
  run_counting(requests, [&](const ProcessGroup& group) {
    if (group.rank() == 3) std::this_thread::sleep_for(3s);
    group.barrier();
    // Rank 0 has looked after 1 and 2 s, rank 1 after 1.25 and 2.5 s, rank 2 after 1.5 and 3 s; a
    // busy machine adds a few looks.
    if (group.rank() == 3) {
      EXPECT_GE(requests.reads, 1);
      EXPECT_LE(requests.reads, 12);
    }
    group.barrier();
  });
}

TEST_F(HostileNccl, AHighRankThatWaitsAloneLooksSoon) {
  run(
      [](const ProcessGroup& group) {
        group.barrier();
        if (group.rank() < 3) return;
        const auto began = std::chrono::steady_clock::now();
        expect_contains(message_of<DistributedError>([&] { group.barrier(); }),
                        {"barrier #2", "will never arrive"});
        EXPECT_LT(std::chrono::steady_clock::now() - began, 7s) << "it looks after 1.75 s";
      },
      60s);
}

TEST_F(HostileNccl, TheNextCallDropsTheTensorsOfFinishedOnes) {
  run(
      [](const ProcessGroup& group) {
        const std::size_t before = allocator(own(group)).stats().live;
        int kept = 0;
        for (int i = 0; i < 10; ++i) {
          const Tensor small = ones({1}, {.device = own(group)});
          group.all_reduce(ones({1 << 16}, {.device = own(group)})).wait();
          to_vector(small);  // waits for the device
          group.all_reduce(small).wait();
          if (allocator(own(group)).stats().live >= before + (1 << 16)) ++kept;
        }
        EXPECT_LE(kept, 3) << "the watcher may look at a call meanwhile, which keeps it";
      },
      60s);
}

}  // namespace
}  // namespace tutti
