// Tests of the choice among the plans of a convolution, with plans that fail on purpose. What cuDNN
// proposes is tested in tests/gpu/cudnn_plans_test.cpp.
#include <tutti/kernels/cuda/plan_list.h>

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace tutti::plan_list_test {
namespace {

struct FakePlan {
  char letter;
};

// Proposes the plans of a list and counts them. It fails for ever at one named '!'.
struct FakeSearch {
  using Plan = FakePlan;
  std::vector<FakePlan> plans;
  std::size_t* found;

  std::optional<FakePlan> next() {
    if (*found < plans.size() && plans[*found].letter == '!')
      fail<DeviceError>("no memory to search");
    if (*found == plans.size()) return {};
    return plans[(*found)++];
  }
};

// A list of fake plans, and what happened when they were run.
class PlanListTest : public ::testing::Test {
 protected:
  using List = kernels::cuda::PlanList<FakeSearch>;

  List list(std::vector<FakePlan> plans) { return List({std::move(plans), &found_}); }

  // Runs the list once and returns the names of the plans that were tried, in order.
  std::string tried(List& plans) {
    std::string names;
    plans.run([&](const FakePlan& plan) {
      names += plan.letter;
      if (broken_.find(plan.letter) != broken_.npos)
        fail<DeviceError>("plan {} is broken", plan.letter);
    });
    return names;
  }

  std::string_view broken_;
  std::size_t found_ = 0;
};

TEST_F(PlanListTest, ALaterPlanIsSearchedForOnlyWhereAnEarlierOneFails) {
  List plans = list({{'a'}, {'b'}, {'c'}});
  EXPECT_EQ(tried(plans), "a");
  EXPECT_EQ(tried(plans), "a");
  EXPECT_EQ(found_, 1u);
  broken_ = "a";
  EXPECT_EQ(tried(plans), "ab");
  EXPECT_EQ(found_, 2u);
}

TEST_F(PlanListTest, ThePlanThatWorkedIsRemembered) {
  List plans = list({{'a'}, {'b'}, {'c'}});
  broken_ = "ab";
  EXPECT_EQ(tried(plans), "abc");
  EXPECT_EQ(tried(plans), "c");
  broken_ = "";
  EXPECT_EQ(tried(plans), "c");
}

TEST_F(PlanListTest, EarlierPlansAreTriedAgainWhereTheRememberedOneFails) {
  List plans = list({{'a'}, {'b'}, {'c'}});
  broken_ = "a";
  tried(plans);
  broken_ = "bc";
  EXPECT_EQ(tried(plans), "bca");
  EXPECT_EQ(tried(plans), "a");
}

TEST_F(PlanListTest, TheFirstErrorIsThrownWhereAllPlansFail) {
  List plans = list({{'a'}, {'b'}});
  broken_ = "ab";
  for (int i = 0; i < 2; ++i) try {
      tried(plans);
      ADD_FAILURE() << "no plan works";
    } catch (const DeviceError& error) {
      EXPECT_STREQ(error.what(), "plan a is broken");
    }
  broken_ = "a";
  EXPECT_EQ(tried(plans), "ab");
}

TEST_F(PlanListTest, OtherErrorsEndTheSearch) {
  List plans = list({{'a'}, {'b'}});
  EXPECT_THROW(plans.run([](const FakePlan&) { fail<ValueError>("a bug"); }), ValueError);
  EXPECT_EQ(found_, 1u);
}

TEST_F(PlanListTest, EarlierPlansAreTriedAgainWhereTheSearchFails) {
  List plans = list({{'a'}, {'b'}, {'!'}});
  broken_ = "a";
  EXPECT_EQ(tried(plans), "ab");
  broken_ = "b";
  EXPECT_EQ(tried(plans), "ba");
  broken_ = "ab";
  try {
    tried(plans);
    FAIL() << "no plan works";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "plan a is broken");
  }
  found_ = 0;
  List none = list({{'!'}});
  EXPECT_THROW(tried(none), DeviceError);
}

TEST_F(PlanListTest, TimingTakesWhatASearchThatFailsHasFound) {
  List plans = list({{'a'}, {'b'}, {'!'}});
  plans.sort_by_time(8, [](const FakePlan& plan) { return 'z' - plan.letter; });
  EXPECT_EQ(tried(plans), "b");
  found_ = 0;
  List none = list({{'!'}});
  EXPECT_THROW(none.sort_by_time(8, [](const FakePlan&) { return 0.0; }), DeviceError);
}

TEST_F(PlanListTest, NoPlanIsNoError) {
  List plans = list({});
  EXPECT_FALSE(plans.run([](const FakePlan&) { FAIL() << "there is no plan"; }));
}

TEST_F(PlanListTest, TimingSortsTheFirstPlans) {
  List plans = list({{'a'}, {'b'}, {'c'}, {'d'}});
  const std::map<char, double> times{{'a', 3}, {'b', 2}, {'c', 1}};
  plans.sort_by_time(3, [&](const FakePlan& plan) { return times.at(plan.letter); });
  broken_ = "cba";
  EXPECT_EQ(tried(plans), "cbad");
}

TEST_F(PlanListTest, PlansThatFailWhileTheyAreTimedComeAfterTheOthers) {
  List plans = list({{'a'}, {'b'}, {'c'}});
  plans.sort_by_time(3, [](const FakePlan& plan) {
    return plan.letter == 'a' ? fail<DeviceError>("no memory"), 0.0 : 'z' - plan.letter;
  });
  broken_ = "cb";
  EXPECT_EQ(tried(plans), "cba");
}

}  // namespace
}  // namespace tutti::plan_list_test
