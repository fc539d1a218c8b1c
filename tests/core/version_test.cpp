// Tests of what --version and bug reports say about the build.
#include <tutti/core/version.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <regex>

namespace tutti {
namespace {

TEST(Version, IsAVersionAndLeadsTheDescription) {
  EXPECT_TRUE(std::regex_match(version(), std::regex(R"(\d+\.\d+\.\d+)"))) << version();
  const std::string text = describe_build();
  EXPECT_TRUE(text.starts_with("tutti " + version() + "\n")) << text;
  for (const char* part :
       {"compiler", "vector instructions", "computes with", "MPI", "JPEG and PNG", "CUDA", "NCCL"})
    EXPECT_TRUE(std::regex_search(text, std::regex(fmt::format("\n{} +[^ \n]", part)))) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex(R"(\noneDNN +(\d+\.\d+|no: ))"))) << text;
}

}  // namespace
}  // namespace tutti
