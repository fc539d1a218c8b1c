// Ranks that do not mean the same by a call, over processes. Each case has a world of its own,
// because it breaks it.
#include "../distributed/unlike_ranks_case.h"

namespace tutti {

TEST(Mpi, UnlikeRanksAreFoundOnEveryRank) {
  for (const test::UnlikeRanks& each : test::all_unlike_ranks())
    test::expect_unlike_ranks_are_found(each,
                                        ProcessGroup::from_environment(std::chrono::seconds(60)));
  ProcessGroup::from_environment(std::chrono::seconds(60)).barrier();  // world() works again
}

TEST(Mpi, UnlikeRanksMayBuildTrainAndEvaluateForThemselves) {
  test::check_what_ranks_may_do_differently(distributed::world());
}

}  // namespace tutti
