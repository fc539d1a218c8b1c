// How ranks stop together: with the error that some of them have, and after the same step.
#include <tutti/distributed/agreement.h>

#include <tutti/core/create.h>
#include <tutti/distributed/metric_sums.h>
#include <tutti/distributed/run_state.h>

#include "messages.h"

#include <gtest/gtest.h>
#include <tutti/core/random.h>

#include <array>
#include <cmath>
#include <csignal>
#include <limits>

namespace tutti::distributed {
namespace {

using test::message_of;

int code_of(const std::exception& error) {
  return dynamic_cast<const DataError*>(&error) ? 200 : 1;
}

TEST(CallOnAllRanks, AllThrowTheErrorOfTheLowestRank) {
  run_ranks(3, [](const ProcessGroup& group) {
    const auto call = [&] {
      if (group.rank() == 1) fail<DataError>("file {}", group.rank());
      if (group.rank() == 2) fail<ValueError>("another error");
    };
    try {
      call_on_all_ranks(group, "start", call, code_of);
      ADD_FAILURE() << "no error";
    } catch (const ErrorOnAllRanks& error) {
      EXPECT_STREQ(error.what(), "file 1");
      EXPECT_EQ(error.rank(), 1);
      EXPECT_EQ(error.code(), 200);
    }
    call_on_all_ranks(
        group, "start", [] {}, code_of);  // the group works as before
    group.barrier();
  });
}

TEST(CallOnAllRanks, ALongTextArrivesAndOneRankThrowsAlike) {
  const std::string text(5000, 'x');
  EXPECT_EQ(message_of<ErrorOnAllRanks>([&] {
              call_on_all_ranks(
                  ProcessGroup(), "start", [&] { throw Error(text); }, code_of);
            }),
            text);
}

TEST(CheckSameOnRanks, NamesWhatTheFirstRankThatDiffersHas) {
  run_ranks(4, [](const ProcessGroup& group) {
    const auto check = [&](const std::string& text) {
      check_same_on_ranks(group, "settings", text);
    };
    EXPECT_NO_THROW(check("lr = 0.1\nseed = 3\n"));
    const bool differs = group.rank() >= 2;
    EXPECT_EQ(message_of<ValueError>([&] {
                check(differs ? "lr = 0.2\nseed = 3\nmixup = 1\n" : "lr = 0.1\nseed = 3\n");
              }),
              "expected the same settings on every rank; rank 0 has lr = 0.1, rank 2 has lr = 0.2, "
              "mixup = 1");
    test::expect_contains(message_of<ValueError>([&] { check(differs ? "" : "x\n"); }),
                          {"rank 0 has x, rank 2 has none of these"});
    EXPECT_NO_THROW(check(""));  // the group works as before
  });
  EXPECT_NO_THROW(check_same_on_ranks(ProcessGroup(), "settings", "alone"));
}

TEST(StopAgreement, AllRanksStopAfterTheSameStep) {
  constexpr int ranks = 3, asked_in_step = 5;
  std::array<int, ranks> stopped_after{};
  run_ranks(ranks, [&](const ProcessGroup& group) {
    StopRequest request{0};
    StopAgreement stop(group, &request);
    for (int step = 1; step <= 100 && stop.signal() == 0; ++step) {
      stop.begin_step();
      if (group.rank() == 1 && step == asked_in_step) request = SIGUSR1;
      stop.end_step();
      if (stop.signal() != 0) stopped_after[static_cast<std::size_t>(group.rank())] = step;
    }
    EXPECT_EQ(signal_name(stop.signal()), "SIGUSR1");
    EXPECT_FALSE(stop.is_error());
  });
  for (const int step : stopped_after) EXPECT_EQ(step, asked_in_step + 1);
}

TEST(StopAgreement, ARankThatCannotGoOnStopsAll) {
  run_ranks(2, [](const ProcessGroup& group) {
    const StopRequest nobody_stops{0};
    StopAgreement stop(group, &nobody_stops);
    stop.begin_step(group.rank() == 0);
    stop.end_step();
    EXPECT_TRUE(stop.is_error());
  });
}

TEST(StopAgreement, WithoutARequestItSendsNothing) {
  run_ranks(2, [](const ProcessGroup& group) {
    StopAgreement stop(group, nullptr);
    stop.begin_step();
    stop.end_step();
    EXPECT_EQ(stop.signal(), 0);
    EXPECT_EQ(group.traffic().calls, 0);
  });
}

TEST(MetricSums, MeansAreOverTheSamplesOfAllRanksAndGoOnAfterARestore) {
  run_ranks(2, [](const ProcessGroup& group) {
    MetricSums sums(2, Device::cpu());
    sums.add({scalar(group.rank() + 1.0), tensor({3}, {}, {.dtype = int64})});
    sums.count(4);
    MetricSums resumed(2, Device::cpu());
    resumed.restore(sums.sums(), sums.samples());
    for (MetricSums* each : {&sums, &resumed}) {
      EXPECT_EQ(each->take(group), (std::vector<double>{0.75, 1.5}));
      EXPECT_EQ(each->samples(), 0);
      EXPECT_EQ(each->take(group), (std::vector<double>{0, 0}));  // no samples
    }
  });
}

TEST(RunState, PartsComeBackOnEveryRankAsRank0AddedThem) {
  run_ranks(3, [](const ProcessGroup& group) {
    RunState mine;
    if (group.rank() == 0) {
      mine.add("model",
               {{"weight", tensor({1, 2}, {2})}, {"count", tensor({3}, {}, {.dtype = int64})}});
      mine.add("optimizer", {{"0.momentum", tensor({4, 5}, {2})}}, {{"group.0.lr", "0.1"}});
      mine.metadata["step"] = "7";
    }
    const RunState state = broadcast(mine, group);
    ASSERT_EQ(state.part("model").size(), 2u);
    EXPECT_EQ(state.part("model")[0].first, "weight");
    EXPECT_EQ(to_vector(state.part("model")[0].second), (std::vector<double>{1, 2}));
    EXPECT_EQ(state.part("model")[1].second.dtype(), int64);
    EXPECT_EQ(state.part("optimizer")[0].first, "0.momentum");
    EXPECT_EQ(state.metadata_of("optimizer"), (Metadata{{"group.0.lr", "0.1"}}));
    EXPECT_EQ(state.number("step"), 7);
    EXPECT_TRUE(state.part("absent").empty());
    EXPECT_TRUE(broadcast(RunState(), group).tensors.empty());
  });
}

TEST(RunState, WhatIsMissingOrOddIsNamed) {
  RunState state{.tensors = {{"rows", zeros({2, 3})}}, .metadata = {{"step", "six"}}};
  EXPECT_EQ(state.tensor("rows", float32, {-1, 3}).size(0), 2);
  const auto message = [&](const auto& read) { return message_of<CheckpointError>(read); };
  EXPECT_EQ(message([&] { state.tensor("sums", float64, {}); }), "tensor 'sums' is missing");
  EXPECT_EQ(message([&] {
              state.tensor("rows", float64, {-1, 3});
            }),
            "tensor 'rows' is float32 (2, 3), expected float64 (-1, 3)");
  EXPECT_EQ(message([&] { state.text("ranks"); }), "its metadata have no 'ranks'");
  EXPECT_EQ(message([&] { state.number("step"); }),
            "its metadata have 'six' as 'step', expected a number of at least 0");
}

TEST(RunState, NumbersThatAreNotFiniteAreFound) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(not_finite({{"a", zeros({3})}, {"b", zeros({0})}, {"n", zeros({1}, {.dtype = int64})}}),
            "");
  for (const double value : {std::nan(""), infinity, -infinity})
    EXPECT_EQ(not_finite({{"a", zeros({3})}, {"b", tensor({1, value}, {2})}}), "b");
}

TEST(RunState, GeneratorsGoOnWhereTheyStood) {
  run_ranks(2, [](const ProcessGroup& group) {
    manual_seed(5 + static_cast<std::uint64_t>(group.rank()));
    default_generator().uniform();
    const Tensor all = gather_generators(group);
    const double next = default_generator().uniform();
    manual_seed(99);
    set_generator(all.select(0, group.rank()));
    EXPECT_EQ(default_generator().uniform(), next);
    EXPECT_EQ(to_vector(all.select(1, 0)), (std::vector<double>{5, 6}));
  });
}

}  // namespace
}  // namespace tutti::distributed
