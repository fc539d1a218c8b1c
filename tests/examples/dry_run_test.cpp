// The memory that --dry-run predicts is that of the run. Peaks are those of a whole process, so
// each is measured in a process of its own.
#include "report/dry_run.h"
#include "small_run.h"
#include "trainer_program.h"

#include <tutti/core/memory.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>

namespace tutti {
namespace {

using namespace examples;

TrainOptions options_of(bool recompute_output) {
  TrainOptions options = test::small_options();
  options.model = "resnet20";
  options.batch_size = 64;
  options.workers = 0;
  options.max_steps = 2;
  options.recompute_output = recompute_output;
  return options;
}

TrainingData images() {
  return make_synthetic({.train = 128, .test = 16, .channels = 3, .size = 32});
}

// Not a test: prints a prediction or a peak in MB, for the test below.
TEST(DryRun, DISABLED_Measure) {
  const std::string what = std::getenv("TUTTI_DRY_RUN_TEST");
  const TrainOptions options = options_of(what.ends_with("recompute"));
  const TrainingData data = images();
  if (what.starts_with("prediction")) {
    const std::string text = describe_run(options, data, 1);
    std::smatch match;
    ASSERT_TRUE(std::regex_search(text, match, std::regex("together +([0-9.]+) MB"))) << text;
    std::printf("megabytes %s\n", match[1].str().c_str());
    return;
  }
  const std::size_t before = allocator(Device::cpu()).stats().live;
  test::train_on(1, options, data);
  std::printf("megabytes %.3f\n",
              static_cast<double>(allocator(Device::cpu()).stats().peak - before) / 1e6);
}

double measure(const std::string& what) {
  const std::string output =
      test::output_of("TUTTI_DRY_RUN_TEST=" + what + " " +
                      std::filesystem::read_symlink("/proc/self/exe").string() +
                      " --gtest_also_run_disabled_tests --gtest_filter=DryRun.DISABLED_Measure")
          .output;
  std::smatch match;
  EXPECT_TRUE(std::regex_search(output, match, std::regex("megabytes ([0-9.]+)"))) << output;
  return match.empty() ? 0 : std::stod(match[1]);
}

TEST(DryRun, PredictsThePeakWithin5Percent) {
  const double plain = measure("peak"), recomputed = measure("peak_recompute");
  EXPECT_NEAR(measure("prediction"), plain, 0.05 * plain);
  EXPECT_NEAR(measure("prediction_recompute"), recomputed, 0.05 * recomputed);
  EXPECT_LT(recomputed, 0.7 * plain);
}

}  // namespace
}  // namespace tutti
