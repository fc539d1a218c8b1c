// Tests of memory_limit() and core_quota() on made-up files of control groups, and of
// available_cores() in a real one where this process may make it.
#include <tutti/core/control_groups.h>
#include <tutti/core/parallel.h>

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <fstream>

namespace tutti {
namespace {

namespace fs = std::filesystem;

class ControlGroups : public ::testing::Test {
 protected:
  void SetUp() override {
    root = fs::path(::testing::TempDir()) / ("tutti_control_groups" + std::to_string(::getpid()));
  }
  void TearDown() override { fs::remove_all(root); }

  void put(const fs::path& file, const std::string& text) const {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  }
  std::uint64_t limit() const { return memory_limit(root / "self", root / "groups"); }

  int quota() const { return core_quota(root / "self", root / "groups"); }

  fs::path root;
  const std::uint64_t physical = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                                 static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
};

TEST_F(ControlGroups, TheMemoryLimitIsTheMachinesMemoryWithoutGroups) {
  EXPECT_EQ(limit(), physical);
  put("self", "0::/\n");
  EXPECT_EQ(limit(), physical);
}

TEST_F(ControlGroups, TheMemoryLimitIsTheSmallestOfTheGroupsOnTheWayUp) {
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
TEST_F(ControlGroups, TheMemoryLimitIsFoundAtTheRootOfAContainer) {
  put("self", "0::/docker/0123\n");
  put("groups/memory.max", "1048576\n");
  EXPECT_EQ(limit(), 1048576u);
}

TEST_F(ControlGroups, TheMemoryLimitIsFoundInVersion1) {
  put("self", "5:cpu,memory:/job\n1:name=memory_of:/other\n0::/\n");
  put("groups/memory/job/memory.limit_in_bytes", "1048576\n");
  EXPECT_EQ(limit(), 1048576u);
  put("groups/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limit(), physical) << "no limit";
}

TEST_F(ControlGroups, TheQuotaIsTheSmallestOfTheGroupsOnTheWayUpRoundedDown) {
  EXPECT_EQ(quota(), INT_MAX);
  put("self", "3:cpuset,memory:/other\n0::/job/step\n");
  put("groups/job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), INT_MAX);
  put("groups/job/cpu.max", "399999 100000\n");
  EXPECT_EQ(quota(), 3);
  put("groups/cpu.max", "20000 10000\n");
  EXPECT_EQ(quota(), 2);
  put("groups/job/step/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota(), 1) << "at least 1";
  put("groups/job/step/cpu.max", "\n");
  EXPECT_EQ(quota(), 2) << "a file that says nothing";
}

TEST_F(ControlGroups, TheQuotaIsFoundInVersion1) {
  put("self", "4:cpuset:/other\n1:cpu,cpuacct:/job\n0::/\n");
  put("groups/cpu/job/cpu.cfs_quota_us", "-1\n");
  put("groups/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), INT_MAX);
  put("groups/cpu/cpu.cfs_quota_us", "250000\n");
  put("groups/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 2);
}

// Writes a line as the system's files want it, in one call.
bool write_line(const fs::path& file, const std::string& text) {
  return static_cast<bool>(std::ofstream(file) << text << std::flush);
}

TEST(CoreQuota, OfARealGroupLimitsTheCoresOfItsProcesses) {
  const bool is_version_1 = fs::exists("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const fs::path group = fs::path(is_version_1 ? "/sys/fs/cgroup/cpu" : "/sys/fs/cgroup") /
                         ("tutti_quota" + std::to_string(::getpid()));
  std::error_code error;
  fs::create_directory(group, error);
  const bool has_quota = is_version_1 ? write_line(group / "cpu.cfs_quota_us", "150000")
                                      : write_line(group / "cpu.max", "150000 100000");
  const pid_t child = has_quota ? fork() : -1;
  if (child == 0) {
    const bool moved = write_line(group / "cgroup.procs", std::to_string(::getpid()));
    _exit(!moved ? 2 : available_cores() == 1 ? 0 : 1);
  }
  int status = 0;
  if (child > 0) waitpid(child, &status, 0);
  fs::remove(group, error);
  if (child < 0 || WEXITSTATUS(status) == 2) GTEST_SKIP() << "no control group can be made here";
  EXPECT_EQ(status, 0);
}

TEST(DescribeThreads, SaysTheQuotaWhereItIsLessThanTheCores) {
  EXPECT_EQ(detail::describe_threads(1, 8, INT_MAX), "1 thread");
  EXPECT_EQ(detail::describe_threads(8, 8, 9), "8 threads");
  EXPECT_EQ(detail::describe_threads(2, 8, 2), "2 threads (8 cores, quota of 2)");
}

}  // namespace
}  // namespace tutti
