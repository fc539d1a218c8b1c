// StragglerMonitor over ranks that are threads.
#include "straggler_monitor_case.h"

namespace tutti {
namespace {

class StragglerMonitorRanks : public ::testing::TestWithParam<int> {};
TEST_P(StragglerMonitorRanks, TheReportNamesTheStraggler) {
  distributed::run_ranks(GetParam(), test::check_straggler_monitor, std::chrono::seconds(60));
}
INSTANTIATE_TEST_SUITE_P(Ranks, StragglerMonitorRanks, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace tutti
