// The differentiable collectives over ranks that are processes: the cases that threads run, too.
#include "../distributed/functional_case.h"

namespace tutti {

TEST(Mpi, DifferentiableCollectivesHaveTheGradientsOfAllRanksLosses) {
  test::check_functional(distributed::world());
}

}  // namespace tutti
