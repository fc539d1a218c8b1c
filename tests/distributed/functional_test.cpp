// The differentiable collectives over ranks that are threads. tests/mpi runs the same cases on
// processes.
#include "functional_case.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

class FunctionalRanks : public ::testing::TestWithParam<int> {};
TEST_P(FunctionalRanks, HaveTheGradientsOfAllRanksLosses) {
  distributed::run_ranks(GetParam(), test::check_functional, 60s);
}
INSTANTIATE_TEST_SUITE_P(Ranks, FunctionalRanks, ::testing::Values(1, 2, 3));

// An input without a gradient costs no collective in backward, on any rank.
TEST(FunctionalCollectives, CommunicateOnceEachWay) {
  distributed::run_ranks(
      2,
      [](const ProcessGroup& group) {
        const auto calls = [&](const Tensor& x) {
          const std::int64_t before = group.traffic().calls;
          const Tensor y = distributed::all_reduce(x, group), w = ones({3}).requires_grad_();
          sum(y * w).backward();
          return group.traffic().calls - before;
        };
        EXPECT_EQ(calls(ones({3})), 1);
        EXPECT_EQ(calls(ones({3}).requires_grad_()), 2);
      },
      60s);
}

TEST(FunctionalCollectives, NameTheCallInErrors) {
  distributed::run_ranks(
      2,
      [](const ProcessGroup& group) {
        try {
          distributed::all_reduce(ones({group.rank() + 1}), group, distributed::ReduceOp::sum,
                                  {.name = "halo exchange"});
          ADD_FAILURE() << "different shapes were reduced";
        } catch (const DistributedError& error) {
          EXPECT_NE(std::string(error.what()).find("halo exchange"), std::string::npos)
              << error.what();
        }
      },
      60s);
}

}  // namespace
}  // namespace tutti
