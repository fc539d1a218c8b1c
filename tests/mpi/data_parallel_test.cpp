// DataParallel over ranks that are processes: the cases that threads run, too.
#include "../distributed/data_parallel_case.h"
#include "../distributed/unused_parameters_case.h"

namespace tutti {

TEST(Mpi, DataParallelWorks) { test::check_data_parallel(distributed::world()); }
TEST(Mpi, RanksMayUseDifferentParameters) {
  test::check_unused_parameters_of_each_rank(distributed::world());
}

}  // namespace tutti
