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

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace tutti::hostile_nccl_test {
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

class HostileNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = nccl::why_unavailable(); !why.empty()) GTEST_SKIP() << why;
    if (!test::emulated()) GTEST_SKIP() << "needs the fake NCCL of the emulator";
    const char* seed = std::getenv("TUTTI_EMULATOR_SEED");
    std::printf("TUTTI_EMULATOR_SEED=%s\n", seed ? seed : "1");
  }
  static constexpr int ranks = 4;
  static Device own(const ProcessGroup& group) { return Device::cuda(group.local_rank()); }
  static void run(const std::function<void(const ProcessGroup&)>& fn,
                  std::chrono::milliseconds timeout) {
    run_ranks(ranks, fn, {.timeout = timeout});
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
        reduce(group, x), reduce(group.for_normalization(), y);  // sets up both
        x.fill_(1);
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

// The first calls set up NCCL, in which the hosts wait for each other; later ones wait on the
// devices.
TEST_F(HostileNccl, OrdersThatDifferBetweenRanksAreFound) {
  for (const bool is_set_up : {false, true})
    run(
        [&](const ProcessGroup& group) {
          const ProcessGroup other = group.for_normalization();
          if (is_set_up) issue_on_both(group, other);
          const std::string text = message_of<TimeoutError>([&] {
            if (group.rank() == 2) issue_on_both(other, group);
            else issue_on_both(group, other);
          });
          if (is_set_up)
            expect_contains(text, {"all ranks have issued it, but it did not end within"});
          else
            expect_contains(text, {"did not arrive within 1 s",
                                   "rank 2 at all_reduce #1 of group 'world/normalization'"});
        },
        1s);
}

TEST_F(HostileNccl, ASetUpThatFailsOnOneRankFailsAllAtOnce) {
  const Variable fault("TUTTI_FAKE_NCCL_SPLIT", "1.0:fail");
  const auto began = std::chrono::steady_clock::now();
  run(
      [](const ProcessGroup& group) {
        const std::string text = message_of<DistributedError>([&] {
          group.all_reduce(ones({10}, {.device = own(group)})).wait();
          group.barrier();
        });
        expect_contains(text,
                        {"all_reduce #1 of group 'world'", "rank 1: ", "ncclCommSplit failed"});
      },
      60s);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);
}

TEST_F(HostileNccl, ASetUpThatHangsOnOneRankEndsAtTheDeadline) {
  const Variable fault("TUTTI_FAKE_NCCL_SPLIT", "1.0:hang");
  run(
      [](const ProcessGroup& group) {
        const std::string text = message_of<TimeoutError>([&] {
          group.all_reduce(ones({10}, {.device = own(group)})).wait();
          group.barrier();
        });
        expect_contains(text, {"setting up NCCL for all_reduce #1 of group 'world'", "1 s"});
      },
      1s);
}

TEST_F(HostileNccl, ARankThatCannotMakeAGroupsStreamFailsAllAtOnce) {
  const Variable fault("TUTTI_EMULATOR_NO_PRIORITY", "1");
  const auto began = std::chrono::steady_clock::now();
  std::atomic<int> failed = 0;
  EXPECT_THROW(run(
                   [&](const ProcessGroup& group) {
                     const ProcessGroup& statistics = group.for_normalization();
                     const auto reduce = [&] {
                       statistics.all_reduce(ones({10}, {.device = own(group)})).wait();
                     };
                     const std::string text = message_of<Error>(reduce);
                     expect_contains(text, {"rank 1: ", "cudaStreamCreateWithPriority"});
                     expect_contains(message_of<DistributedError>(reduce),
                                     {"the group has failed: all_reduce #1", "rank 1: "});
                     if (++failed == ranks) reduce();
                   },
                   60s),
               DistributedError);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);
}

TEST_F(HostileNccl, AModeForAllCommunicatorsIsRefused) {
  for (const auto& [name, value] :
       {std::pair("NCCL_COMM_BLOCKING", "0"), std::pair("NCCL_COMM_SPLIT_SHARE_RESOURCES", "1")}) {
    const Variable mode(name, value);
    run(
        [&, name = name](const ProcessGroup& group) {
          expect_contains(message_of<DistributedError>(
                              [&] { group.all_reduce(ones({10}, {.device = own(group)})).wait(); }),
                          {name, "unset it"});
        },
        60s);
  }
}

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
}  // namespace tutti::hostile_nccl_test
