#include "../distributed/join_case.h"

namespace tutti {

TEST(Mpi, JoinWorks) { testing::check_join(distributed::world()); }

}  // namespace tutti
