#include "../distributed/arrivals_case.h"

namespace tutti {

TEST(Mpi, TheStragglerHasAName) { testing::check_arrivals(distributed::world()); }

}  // namespace tutti
