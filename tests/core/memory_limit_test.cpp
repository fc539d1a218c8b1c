// Tests of memory_limit() on made-up files of control groups.
#include <tutti/core/memory_limit.h>

#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>
#include <fstream>

namespace tutti {
namespace {

namespace fs = std::filesystem;

class MemoryLimit : public ::testing::Test {
 protected:
  void SetUp() override {
    root = fs::path(::testing::TempDir()) / ("tutti_memory_limit" + std::to_string(::getpid()));
  }
  void TearDown() override { fs::remove_all(root); }

  void put(const fs::path& file, const std::string& text) const {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  }
  std::uint64_t limit() const { return memory_limit(root / "self", root / "groups"); }

  fs::path root;
  const std::uint64_t physical = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                                 static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
};

TEST_F(MemoryLimit, IsTheMachinesMemoryWithoutGroups) {
  EXPECT_EQ(limit(), physical);
  put("self", "0::/\n");
  EXPECT_EQ(limit(), physical);
}

TEST_F(MemoryLimit, IsTheSmallestOfTheGroupsOnTheWayUp) {
  put("self", "0::/job/step\n");
  put("groups/job/step/memory.max", "max\n");
  EXPECT_EQ(limit(), physical);
  put("groups/job/memory.max", "1048576\n");
  EXPECT_EQ(limit(), 1048576u);
  put("groups/job/step/memory.max", "65536\n");
  EXPECT_EQ(limit(), 65536u);
  put("groups/job/other/memory.max", "4096\n");
  EXPECT_EQ(limit(), 65536u) << "another group's";
}

// A container sees its own group as the root, but may read its path outside.
TEST_F(MemoryLimit, IsFoundAtTheRootOfAContainer) {
  put("self", "0::/docker/0123\n");
  put("groups/memory.max", "1048576\n");
  EXPECT_EQ(limit(), 1048576u);
}

TEST_F(MemoryLimit, IsFoundInVersion1) {
  put("self", "5:cpu,memory:/job\n1:name=memory_of:/other\n0::/\n");
  put("groups/memory/job/memory.limit_in_bytes", "1048576\n");
  EXPECT_EQ(limit(), 1048576u);
  put("groups/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limit(), physical) << "no limit";
}

}  // namespace
}  // namespace tutti
