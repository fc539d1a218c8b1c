#include "arrivals_case.h"

namespace tutti {
namespace {

class ArrivalsRanks : public ::testing::TestWithParam<int> {};
TEST_P(ArrivalsRanks, TheStragglerHasAName) {
  distributed::run_ranks(GetParam(), testing::check_arrivals, std::chrono::seconds(60));
}
INSTANTIATE_TEST_SUITE_P(Ranks, ArrivalsRanks, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace tutti
