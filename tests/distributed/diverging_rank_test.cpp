// Tests that errors name the layer and the absent rank on ranks that are threads: the layer in
// which a rank waits, and the latest call of each absent rank in every group. tests/mpi runs the
// same cases on processes.
#include "diverging_rank_case.h"
#include "messages.h"

#include <tutti/distributed/call_log.h>

#include <gtest/gtest.h>

#include <future>

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;
using test::expect_contains;
using test::message_of;

class DivergingRank : public ::testing::TestWithParam<const char*> {};

TEST_P(DivergingRank, IsNamedOnEveryRankWithItsLayer) {
  run_ranks(
      3,
      [](const ProcessGroup& group) {
        const std::string text = message_of<Error>([&] { test::diverge(GetParam(), group); });
        expect_contains(text, test::expected_words(GetParam(), group));
      },
      test::diverging_rank_timeout);
}

INSTANTIATE_TEST_SUITE_P(Threads, DivergingRank,
                         ::testing::Values("eval", "forward", "busy", "channels", "backward",
                                           "left_out", "other_loss", "options", "order", "refused",
                                           "unfrozen", "moved"),
                         [](const auto& fault) { return std::string(fault.param); });

// A rank that has departed is described by its latest calls too, those in sub-groups included.
TEST(LatestCalls, OfARankThatHasReturnedAreInTheError) {
  run_ranks(
      2,
      [](const ProcessGroup& group) {
        const ProcessGroup half = group.split(0);
        half.all_reduce(ones({4}), ReduceOp::sum, {.name = "head"}).wait();
        if (group.rank() == 1) return;
        const std::string text = message_of<DistributedError>(
            [&] { group.all_reduce(ones({2}), ReduceOp::sum, {.name = "tail"}).wait(); });
        expect_contains(text,
                        {"all_reduce #2 of group 'world' (tail, 8 B): rank 1 will never arrive",
                         "Latest call of each group: rank 1 at all_reduce #1 of group "
                         "'world/split0' (head, 16 B) and all_gather #1 of group 'world' (split, "
                         "16 B); "
                         "rank 0 at all_reduce #2 of group 'world' (tail, 8 B) and all_reduce #1 "
                         "of group 'world/split0' (head, 16 B)"});
      },
      60s);
}

// The text stays short however many ranks are absent and however many groups they have.
TEST(LatestCalls, OfManyAbsentRanksAndGroupsAreCut) {
  std::promise<void> failed;
  const std::shared_future<void> has_failed = failed.get_future().share();
  run_ranks(
      7,
      [&](const ProcessGroup& group) {
        std::vector<ProcessGroup> groups;
        for (int i = 0; i < 8; ++i) groups.push_back(group.split(i));
        for (const ProcessGroup& each : groups) each.barrier();
        if (group.rank() != 3) return has_failed.wait();
        const std::string text =
            message_of<TimeoutError>([&] { group.barrier({.timeout = 100ms}); });
        failed.set_value();
        // The latest call is told first, so the group in which this rank waits is never cut.
        expect_contains(text, {"rank 0 at barrier #1 of group 'world/split7'", "rank 3 at barrier ",
                               " and 3 more"});
        EXPECT_EQ(text.find("rank 6 at "), std::string::npos) << text;
      },
      60s);
}

TEST(CallLog, KeepsTheLatestCallOfEveryGroupOfARank) {
  CallLog calls;
  const GroupInfo all{.rank = 1, .size = 3, .group = "world", .world_ranks = {0, 1, 2}},
      pair{.rank = 0, .size = 2, .group = "world/split0", .world_ranks = {1, 2}};
  EXPECT_FALSE(calls.latest_calls(1));
  const auto in_all = calls.add(all);
  EXPECT_EQ(calls.latest_calls(1)->text, "no call");
  auto in_pair = calls.add(pair);
  const Tensor x = ones({3});
  const auto call = [&](std::int64_t number, const std::string& name) {
    return Collective{.operation = Operation::all_reduce,
                      .input = x,
                      .output = x,
                      .name = name,
                      .sequence = number};
  };
  in_all->record(call(1, "a"));
  in_all->record(call(2, "b"));
  in_pair->record(call(7, std::string(300, 'c')));
  EXPECT_EQ(calls.latest_calls(1)->text,
            fmt::format("all_reduce #7 of group 'world/split0' ({}, 12 B) and all_reduce #2 of "
                        "group 'world' (b, 12 B)",
                        std::string(102, 'c')));
  EXPECT_FALSE(calls.latest_calls(0));
  // The calls of a group that is gone are kept until the rank makes another group.
  in_pair.reset();
  expect_contains(calls.latest_calls(1)->text, {"world/split0"});
  in_pair = calls.add(pair);
  EXPECT_EQ(calls.latest_calls(1)->text, "all_reduce #2 of group 'world' (b, 12 B)");
}

TEST(CallLog, TellsTheLatestCallFirstAndForgetsGroupsThatAreGone) {
  CallLog calls;
  const GroupInfo world{.rank = 0, .size = 1, .group = "world", .world_ranks = {0}};
  const auto in_world = calls.add(world);
  const Tensor x = ones({1});
  const auto call = [&](std::int64_t number) {
    return Collective{
        .operation = Operation::all_reduce, .input = x, .output = x, .sequence = number};
  };
  for (int i = 0; i < 20; ++i) {
    GroupInfo split = world;
    split.group = fmt::format("world/split{}", i);
    calls.add(split)->record(call(1));
  }
  in_world->record(call(2));
  EXPECT_EQ(calls.latest_calls(0)->text,
            "all_reduce #2 of group 'world' (4 B) and all_reduce #1 of group 'world/split19' (4 "
            "B)");
}

}  // namespace
}  // namespace tutti
