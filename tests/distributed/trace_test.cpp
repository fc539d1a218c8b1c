// Traces of ranks that are threads.
#include "trace_case.h"

#include <unistd.h>
#include <filesystem>

namespace tutti {
namespace {

TEST(DistributedTrace, CollectivesOverlapWithBackward) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("tutti_step_{}.json", getpid()))
          .string();
  for (const int ranks : {2, 3}) {
    trace::Profile profile(path);
    distributed::run_ranks(ranks, test::run_traced_step, std::chrono::seconds(60));
    profile.finish();
    test::expect_traced_step(test::read_trace(path), ranks);
  }
  std::filesystem::remove(path);
}

TEST(DistributedTrace, ARefusedProfileLeavesTheFileOfAnEarlierOneAlone) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("tutti_refused_{}.json", getpid()))
          .string();
  trace::Profile(path).finish();
  {
    const trace::Profile other(path + ".other");
    EXPECT_THROW((void)trace::Profile{path}, Error);  // one at a time
  }
  EXPECT_TRUE(std::filesystem::exists(path));
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".other");
}

}  // namespace
}  // namespace tutti
