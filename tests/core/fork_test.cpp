// Tests of children of a fork: they compute with as many threads as their parent, and what belongs
// to the parent stays as it is.
#include <tutti/core/atomic_file.h>
#include <tutti/core/create.h>
#include <tutti/core/parallel.h>
#include <tutti/core/trace.h>

#include "distributed/process.h"
#include "temporary_folder.h"
#include "which_sanitizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

namespace tutti {
namespace {

class Fork : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::under_thread_sanitizer) GTEST_SKIP() << "no child may start threads";
  }
};

// Runs `body` in the child of a fork, which has to return true within 20 s.
template <class Body>
void expect_in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // ends a child that hangs
    _exit(body() ? 0 : 1);
  }
  test::expect_exit(child, 0);
}

// Computes in a loop with `threads` threads, and returns whether every index was met once.
bool computes_with(int threads) {
  set_num_threads(threads);
  std::atomic<int> calls{0}, sum{0};
  parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) {
    ++calls;
    for (std::int64_t i = begin; i < end; ++i) sum += static_cast<int>(i);
  });
  return sum == 4950 && calls == num_threads();
}

TEST_F(Fork, AChildComputesWithTheThreadsOfItsParentOrAsManyAsItWants) {
  const int before = num_threads();
  EXPECT_TRUE(computes_with(2));
  expect_in_child([] { return computes_with(num_threads()) && computes_with(3); });
  EXPECT_TRUE(computes_with(2));  // the parent goes on
  for (int i = 0; i < 20; ++i) expect_in_child([] { return computes_with(2); });
  set_num_threads(before);
}

TEST_F(Fork, AChildOfAChildComputes) {
  const int before = num_threads();
  EXPECT_TRUE(computes_with(2));
  expect_in_child([] {  // as daemon() forks twice
    if (!computes_with(2)) return false;
    const pid_t child = fork();
    if (child == 0) _exit(computes_with(2) ? 0 : 1);
    int status = 0;
    return waitpid(child, &status, 0) == child && status == 0;
  });
  set_num_threads(before);
}

TEST_F(Fork, AnyThreadMayForkAndTheChildHasThreadsOfItsOwn) {
  std::thread([] {
    EXPECT_TRUE(computes_with(3));
    expect_in_child([] {
      bool other = false;
      std::thread([&] { other = computes_with(2); }).join();
      return other && computes_with(3);
    });
    EXPECT_TRUE(computes_with(3));
  }).join();
}

TEST_F(Fork, TheTimelineStaysTheParents) {
  if (test::under_address_sanitizer)
    GTEST_SKIP() << "AddressSanitizer does not unlock its allocator in the child of a fork";
  const test::TemporaryFolder folder;
  const std::string path = folder / "timeline.json";
  trace::Profile profile(path);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) const trace::Span span("busy");
  });
  for (int i = 0; i < 20; ++i)
    expect_in_child([&] {
      { const trace::Span span("child"); }
      profile.finish();
      return !std::ifstream(path);
    });
  stop = true;
  busy.join();
  profile.finish();
  EXPECT_TRUE(std::ifstream(path));
}

TEST(FileDescriptor, IsNeverThatOfAStandardStream) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "file";
  expect_in_child([&] {
    for (int stream = 0; stream < 3; ++stream) close(stream);
    AtomicFile file(path);
    for (int stream = 0; stream < 3; ++stream)
      if (write(stream, "printed", 7) != -1) return false;
    file.write("written", 7);
    file.commit();
    return true;
  });
  std::string text;
  std::ifstream(path) >> text;
  EXPECT_EQ(text, "written");
}

}  // namespace
}  // namespace tutti
