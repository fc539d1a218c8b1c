// StragglerMonitor over ranks that are processes: the case that threads run, too.
#include "../distributed/straggler_monitor_case.h"

namespace tutti {

TEST(Mpi, TheReportNamesTheStraggler) { test::check_straggler_monitor(distributed::world()); }

}  // namespace tutti
