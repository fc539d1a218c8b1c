// DataParallel over ranks that are processes: the cases that threads run, too.
#include "../distributed/data_parallel_case.h"

namespace tutti {

TEST(Mpi, DataParallelWorks) { test::check_data_parallel(distributed::world()); }

}  // namespace tutti
