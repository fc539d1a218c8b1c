// The flight recorder: what the ring keeps, and the files that ranks write when their world fails.
// tests/distributed/flight_recorder_reader.py reads such files.
#include "messages.h"

#include <tutti/core/create.h>
#include <tutti/core/ticks.h>
#include <tutti/distributed/backend.h>
#include <tutti/distributed/flight_recorder_file.h>
#include <tutti/distributed/process_group.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace {

// A disk that hangs in fsync, or is found to be full there, while a test wants it to.
struct {
  std::atomic<bool> hangs = false, was_asked = false, is_full = false;
} disk;

}  // namespace

// Replaces the function of the C library in this program.
extern "C" int fsync(int file) {
  disk.was_asked = true;
  disk.hangs.wait(true);
  if (disk.is_full) {
    errno = ENOSPC;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, file));
}

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;
using Json = nlohmann::json;

// Sets the folder for a test; nothing is written after it.
class FlightRecorderFolder {
 public:
  FlightRecorderFolder() {
    path_ = std::filesystem::temp_directory_path() / fmt::format("flight_recorder_{}", getpid());
    std::filesystem::remove_all(path_);
    set_flight_recorder_folder(path_);
  }
  ~FlightRecorderFolder() {
    set_flight_recorder_folder("");
    std::filesystem::remove_all(path_);
  }
  std::vector<Json> lines_of(int rank) const {
    std::ifstream file(path_ / fmt::format("flight_recorder.local.{}.jsonl", rank));
    std::vector<Json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  bool is_empty() const { return !std::filesystem::exists(path_); }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(FlightRecorder, KeepsTheLastCallsWithTheirFirstTimes) {
  FlightRecorder recorder;
  const auto group = recorder.add_group("world", {0, 1});
  EXPECT_EQ(recorder.contents().entries.size(), 0u);
  constexpr std::int64_t calls = 450;
  for (std::int64_t i = 1; i <= calls; ++i) {
    const RecordedCall call =
        recorder.record(*group, {.sequence = i, .operation = Operation::all_reduce});
    EXPECT_EQ(call.number, i);
    if (i % 2 == 0) {
      recorder.finish(call, ticks_now());
      recorder.finish(call, 0);  // a second wait changes nothing
    }
  }
  recorder.finish({.number = calls - 201}, 0);  // its place is taken
  const FlightRecorder::Contents contents = recorder.contents();
  EXPECT_EQ(contents.calls, calls);
  ASSERT_EQ(contents.entries.size(), FlightRecorder::capacity);
  for (std::size_t i = 0; i < contents.entries.size(); ++i) {
    const auto& entry = contents.entries[i];
    EXPECT_EQ(entry.call.sequence, calls - 199 + static_cast<std::int64_t>(i));
    EXPECT_EQ(entry.times.done != 0, entry.call.sequence % 2 == 0);
    if (entry.times.done != 0) {
      EXPECT_GE(entry.times.done, entry.times.issued);
      EXPECT_LT(ticks_to_seconds(entry.times.waited), 60);
    }
  }
}

TEST(FlightRecorder, TellsGroupsOfOneNameApart) {
  FlightRecorder recorder;
  const auto first = recorder.add_group("world/split0", {0, 1}),
             other = recorder.add_group("world/split0", {0, 2}),
             again = recorder.add_group("world/split0", {0, 1});
  EXPECT_EQ(first->index, again->index);
  EXPECT_NE(first->index, other->index);
  EXPECT_EQ(first->number, 1);
  EXPECT_EQ(other->number, 1);
  EXPECT_EQ(again->number, 2);
}

TEST(FlightRecorder, TellsTheLastCallOfAGroupThatHasGone) {
  FlightRecorder recorder;
  const auto world = recorder.add_group("world", {0, 1});
  auto group = recorder.add_group("world/split0", {0, 1});
  const std::uint64_t id = group->id;
  recorder.record(*group, {.sequence = 3});
  EXPECT_EQ(recorder.left_after(id), std::nullopt);
  group.reset();
  EXPECT_EQ(recorder.left_after(id), 3);
  recorder.add_group("world/split0", {0, 1});
  EXPECT_EQ(recorder.left_after(id), 3);
  EXPECT_EQ(recorder.left_after(world->id), std::nullopt);
  for (std::size_t i = 0; i < FlightRecorder::capacity; ++i)
    recorder.add_group("world/split0", {0, 1});
  EXPECT_EQ(recorder.left_after(id), std::nullopt);
}

TEST(FlightRecorder, TicksAreTime) {
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t ticks = ticks_now();
  std::this_thread::sleep_for(100ms);
  const double seconds = ticks_to_seconds(ticks_now() - ticks);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  EXPECT_GT(seconds, 0.09);
  EXPECT_LT(seconds, 2 * passed.count());
}

// Rank 1 leaves a collective out and issues the next one.
void part(const ProcessGroup& group) {
  const ProcessGroup half = group.split(0);
  for (int i = 0; i < 3; ++i) group.all_reduce(ones({4}), ReduceOp::sum, {.name = "step"}).wait();
  half.barrier({.name = "together"});
  const std::int64_t n = group.rank() == 1 ? 7 : 5;
  EXPECT_THROW(group.all_reduce(ones({n}), ReduceOp::sum, {.name = "bucket \"x\""}).wait(),
               DistributedError);
}

TEST(FlightRecorder, EveryRankWritesItsCallsWhereItsWorldFails) {
  const FlightRecorderFolder folder;
  run_ranks(3, part, 60s);
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<Json> lines = folder.lines_of(rank);
    ASSERT_EQ(lines.size(), 7u);  // the head; the split, three steps, the barrier and the last
    EXPECT_EQ(lines[0]["rank"], rank);
    EXPECT_EQ(lines[0]["calls"], 6);
    test::expect_contains(lines[0]["failure"], {"bucket", "the ranks are at different calls"});
    const Json& groups = lines[0]["groups"];
    const auto name_of = [&](const Json& line) {
      return groups[line["group"].get<std::size_t>()]["name"];
    };
    EXPECT_EQ(name_of(lines[5]), "world/split0");
    EXPECT_EQ(lines[5]["name"], "together");
    EXPECT_EQ(name_of(lines[6]), "world");
    EXPECT_EQ(lines[6]["name"], "bucket \"x\"");
    EXPECT_EQ(lines[6]["sequence"], 5);
    EXPECT_EQ(lines[6]["bytes"], rank == 1 ? 28 : 20);
    EXPECT_TRUE(lines[6]["done"].is_null());
    double before = 0;
    for (std::size_t i = 1; i < 6; ++i) {
      EXPECT_GE(lines[i]["issued"], before);
      EXPECT_GE(lines[i]["done"], lines[i]["issued"]);
      EXPECT_GE(lines[i]["waited"], 0);
      EXPECT_LT(lines[i]["done"], lines[0]["written"]);
      before = lines[i]["issued"];
    }
  }
}

TEST(FlightRecorder, WritesNothingWithoutAFolderOrAFailure) {
  {
    const FlightRecorderFolder folder;
    run_ranks(
        2, [](const ProcessGroup& group) { group.barrier(); }, 60s);
    EXPECT_TRUE(folder.is_empty());
    set_flight_recorder_folder("");
    run_ranks(2, part, 60s);
    EXPECT_TRUE(folder.is_empty());
  }
}

// Lets a world of two ranks fail, whose error is that of the collective, and expects one line of
// each rank on stderr: where its file should be, and why it is not there.
void expect_unwritten(const std::string& folder, const std::string& why) {
  testing::internal::CaptureStderr();
  run_ranks(
      2,
      [](const ProcessGroup& group) {
        for (int i = 0; i < 100; ++i) group.barrier({.name = "step"});
        part(group);
        test::expect_error<DistributedError>([&] { group.barrier(); },
                                             {"bucket", "the ranks are at different calls"});
      },
      60s);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(text, '\n'), 2) << text;
  for (const int rank : {0, 1})
    test::expect_contains(
        text,
        {fmt::format("tutti: rank {} leaves no flight recorder in '{}': ", rank, folder), why});
}

TEST(FlightRecorder, ARankSaysInOneLineThatItsFolderCannotBeMade) {
  for (const auto& [path, why] : {std::pair{"/proc/none", "No such file or directory"},
                                  std::pair{"/dev/full", "Not a directory"}}) {
    set_flight_recorder_folder(path);
    expect_unwritten(path, fmt::format("cannot make the folder: {}\n", why));
    set_flight_recorder_folder("");
  }
}

TEST(FlightRecorder, AFullDiskIsNamedInOneLineAndKeepsNoPartOfTheFile) {
  const FlightRecorderFolder folder;
  disk.is_full = true;
  expect_unwritten(folder.path(), fmt::format("cannot write '{}/flight_recorder.local.1.jsonl': "
                                              "No space left on device\n",
                                              folder.path()));
  disk.is_full = false;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// The system would end the process by SIGXFSZ.
TEST(FlightRecorder, AFileAboveTheLimitOfTheProcessIsNamedInOneLine) {
  const FlightRecorderFolder folder;
  rlimit old = {};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{4096, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  expect_unwritten(folder.path(), "File too large\n");
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// Work::is_done() may be the one that finds the failure. Only who throws it waits for the file.
TEST(FlightRecorder, AFileSystemThatHangsKeepsNobodyFromFailingTheWorld) {
  const FlightRecorderFolder folder;
  const GroupInfo info{.size = 2, .group = "world", .backend = "local", .world_ranks = {0, 1}};
  World world{World::Options{}};
  const auto recorder = world.recorder(info);
  recorder->record(*recorder->add_group(info.group, info.world_ranks), {.sequence = 1});
  disk.hangs = true;
  const auto start = std::chrono::steady_clock::now();
  world.fail({.what = "gave up"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
  disk.hangs = false;
  disk.hangs.notify_all();
  EXPECT_THROW(world.throw_if_failed({}, info), DistributedError);
  EXPECT_FALSE(folder.lines_of(0).empty());
}

TEST(FlightRecorder, AFileSystemThatHangsDoesNotKeepTheErrorFromItsReader) {
  const FlightRecorderFolder folder;
  disk.was_asked = false;
  disk.hangs = true;
  const auto start = std::chrono::steady_clock::now();
  run_ranks(2, part, 60s);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
  EXPECT_TRUE(disk.was_asked);
  set_flight_recorder_folder("");  // counts for later failures only
  disk.hangs = false;
  disk.hangs.notify_all();
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (folder.lines_of(1).empty() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(1ms);  // before the folder goes
  EXPECT_FALSE(folder.lines_of(1).empty());
}

}  // namespace
}  // namespace tutti
