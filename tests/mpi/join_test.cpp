// Join over ranks that are processes: the cases that threads run, too.
#include "../distributed/join_case.h"

namespace tutti {

TEST(Mpi, JoinWorks) { test::check_join(distributed::world()); }

}  // namespace tutti
