// Tests of the choice of the level of processors whose kernels run. tests/levels.sh runs all tests
// of the kernels at each level.
#include <tutti/core/cpu_level.h>
#include <tutti/core/error.h>
#include <tutti/core/version.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace tutti::cpu_level_test {
namespace {

constexpr CpuLevel levels[] = {CpuLevel::baseline, CpuLevel::avx2, CpuLevel::avx512,
                               CpuLevel::avx512_bf16};

TEST(CpuLevels, ALimitLowersTheLevelAndNeverRaisesIt) {
  const CpuLevel highest = detail::choose_cpu_level(nullptr);
  for (const CpuLevel level : levels)
    EXPECT_EQ(detail::choose_cpu_level(to_string(level).c_str()), std::min(level, highest));
}

TEST(CpuLevels, AWrongLimitIsRefusedWithTheChoices) {
  for (const char* wrong : {"", "AVX2", "avx", "sse4"}) {
    try {
      detail::choose_cpu_level(wrong);
      ADD_FAILURE() << "accepted '" << wrong << "'";
    } catch (const ValueError& error) {
      const std::string text = error.what();
      for (const CpuLevel level : levels)
        EXPECT_NE(text.find(to_string(level)), std::string::npos) << text;
      EXPECT_NE(text.find("'" + std::string(wrong) + "'"), std::string::npos) << text;
    }
  }
}

TEST(CpuLevels, TheDescriptionOfTheBuildSaysWhatWasChosen) {
  const bool chosen = describe_build().find("chosen at run time") != std::string::npos;
  EXPECT_EQ(chosen, cpu_level() != CpuLevel::baseline) << describe_build();
}

TEST(CpuLevels, TheKernelsHaveTheLevelThatTheEnvironmentNames) {
  const char* const limit = std::getenv("TUTTI_MAX_CPU");
  if (!limit) GTEST_SKIP() << "TUTTI_MAX_CPU is not set";
  if (detail::choose_cpu_level(nullptr) < cpu_level()) ADD_FAILURE() << "above the processor";
  if (to_string(cpu_level()) != limit)
    GTEST_SKIP() << "this build or processor has no " << limit << ", so " << to_string(cpu_level())
                 << " was tested";
}

}  // namespace
}  // namespace tutti::cpu_level_test
