// Tests that errors name the layer and the absent rank on ranks that are threads: the layer in
// which a rank waits, and the latest call of each absent rank in every group. tests/mpi runs the
// same cases on processes.
#include "diverging_rank_case.h"
#include "messages.h"

#include <tutti/distributed/flight_recorder.h>

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

// Returns the latest calls that a recorder tells, as errors show them.
std::string text_of(const FlightRecorder& recorder) { return recorder.latest_calls().text; }

Fingerprint all_reduce_call(std::int64_t number, const Tensor& x, const std::string& name = {}) {
  return fingerprint({.operation = Operation::all_reduce,
                      .input = x,
                      .output = x,
                      .options = {.name = name},
                      .sequence = number});
}

TEST(FlightRecorder, KeepsTheLatestCallOfEveryGroup) {
  FlightRecorder recorder(1);
  EXPECT_TRUE(recorder.latest_calls().sequences.empty());
  const auto in_all = recorder.add_group("world", {0, 1, 2});
  EXPECT_EQ(text_of(recorder), "no call");
  auto in_pair = recorder.add_group("world/split0", {1, 2});
  const Tensor x = ones({3});
  recorder.record(*in_all, all_reduce_call(1, x, "a"));
  recorder.record(*in_all, all_reduce_call(2, x, "b"));
  recorder.record(*in_pair, all_reduce_call(7, x, std::string(300, 'c')));
  EXPECT_EQ(text_of(recorder),
            fmt::format("all_reduce #7 of group 'world/split0' ({}, 12 B) and all_reduce #2 of "
                        "group 'world' (b, 12 B)",
                        std::string(187, 'c')));
  // The calls of a group that is gone are kept until the rank makes another group.
  in_pair.reset();
  expect_contains(text_of(recorder), {"world/split0"});
  in_pair = recorder.add_group("world/split0", {1, 2});
  EXPECT_EQ(text_of(recorder), "all_reduce #2 of group 'world' (b, 12 B)");
}

TEST(FlightRecorder, TellsTheLatestCallFirstAndForgetsGroupsThatAreGone) {
  FlightRecorder recorder;
  const auto in_world = recorder.add_group("world", {0});
  const Tensor x = ones({1});
  for (int i = 0; i < 20; ++i)
    recorder.record(*recorder.add_group(fmt::format("world/split{}", i), {0}),
                    all_reduce_call(1, x));
  recorder.record(*in_world, all_reduce_call(2, x));
  EXPECT_EQ(text_of(recorder),
            "all_reduce #2 of group 'world' (4 B) and all_reduce #1 of group 'world/split19' (4 "
            "B)");
}

}  // namespace
}  // namespace tutti
