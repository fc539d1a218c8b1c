// What a rendezvous file can suffer: other files at its path, links, rights of others, writers that
// died in the middle, and rank 0s that were killed and have left it behind.
#include "messages.h"
#include "rendezvous_case.h"

#include <tutti/core/error.h>
#include <tutti/core/file_descriptor.h>
#include <tutti/distributed/launch/rendezvous/messages.h>
#include <tutti/distributed/launch/rendezvous/process_identity.h>
#include <tutti/distributed/launch/rendezvous/store.h>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <csignal>
#include <fstream>
#include <sstream>

namespace tutti {
namespace {

using namespace distributed;
using namespace std::chrono_literals;
using test::expect_contains;
using test::has_begun;
using test::message_of;
using test::Process;
using test::Rank;
using test::TemporaryFile;

std::string contents_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Writes a rendezvous file as a rank 0 of that identity would have left it.
void leave_file(const std::string& path, const std::string& run_id, std::uint32_t size,
                const rendezvous::ProcessIdentity& rank_0) {
  std::string header, text = "tutti rendezvous 2\n";
  rendezvous::write_text(header, run_id);
  rendezvous::write_number(header, size);
  for (const std::string& part : {rank_0.host, rank_0.numbering, rank_0.pid, rank_0.started})
    rendezvous::write_text(header, part);
  rendezvous::write_text(text, header);
  std::ofstream(path, std::ios::binary) << text;
  chmod(path.c_str(), 0600);
}

rendezvous::ProcessIdentity process_of_another_host() {
  return {.host = "far-away", .numbering = "another boot", .pid = "17", .started = "1"};
}

TEST(FileRendezvous, OtherFilesAreLeftAloneAndTornRecordsOverwritten) {
  const TemporaryFile file("other");
  const std::string& path = file.path;
  std::ofstream(path) << "the diary of somebody\n";
  chmod(path.c_str(), 0600);
  expect_contains(Rank{"file:" + path, 0, 2}.start().line(), {"error: ", "is no rendezvous file"});
  EXPECT_EQ(std::filesystem::file_size(path), 22u);
  std::filesystem::remove(path);

  const auto zero = rendezvous::open_file(path, {0, 2, "run", 5s});
  zero->set("a", "1");
  std::ofstream(path, std::ios::app)
      << std::string("\x05\0\0\0\x09\0\0\0half", 12);  // a writer died in this record
  const auto one = rendezvous::open_file(path, {1, 2, "run", 5s});
  EXPECT_EQ(one->put("a", "2"), "1");
  EXPECT_EQ(one->put("b", "2"), "2");
  EXPECT_EQ(zero->list(""), (rendezvous::Values{{"a", "1"}, {"b", "2"}}));
}

TEST(FileRendezvous, AStaleRunIsTurnedAway) {
  const TemporaryFile file("stale");
  const std::string at = "file:" + file.path;
  Process zero = Rank{at, 0, 2}.start();
  while (!has_begun(file.path)) std::this_thread::sleep_for(10ms);
  expect_contains(Rank{at, 1, 2, "run 0"}.start().line(),
                  {"error: ", "belongs to run 'run 1', this process to run 'run 0'"});
  expect_contains(Rank{at, 1, 3}.start().line(),
                  {"error: ", "was made for 2 ranks, this one was started for 3"});
  Process one = Rank{at, 1, 2}.start();
  for (Process* rank : {&one, &zero}) {
    EXPECT_EQ(rank->line(), "met: [the name of 0] [the name of 1]");
    EXPECT_EQ(rank->exit_code(), 0);
  }
}

TEST(FileRendezvous, OnlyARegularFileOfThisUserIsOpened) {
  const TemporaryFile file("guarded"), target("target");
  const auto open = [&](int rank) {
    return message_of<DistributedError>([&] {
      rendezvous::open_file(file.path, {rank, 2, "run", 100ms});
    });
  };
  std::ofstream(target.path) << "";
  std::filesystem::create_symlink(target.path, file.path);
  for (const int rank : {0, 1}) expect_contains(open(rank), {"symbolic link"});
  EXPECT_EQ(std::filesystem::file_size(target.path), 0u);
  std::filesystem::remove(file.path);

  ASSERT_EQ(mkfifo(file.path.c_str(), 0600), 0);
  for (const int rank : {0, 1}) expect_contains(open(rank), {"be a regular file"});
  std::filesystem::remove(file.path);

  std::ofstream(file.path) << "";
  chmod(file.path.c_str(), 0620);
  for (const int rank : {0, 1}) expect_contains(open(rank), {"its mode is 0620", "chmod 600"});
  chmod(file.path.c_str(), 0600);
  std::filesystem::resize_file(file.path, 1ull << 40);  // all of it a hole
  for (const int rank : {0, 1}) expect_contains(open(rank), {"at most 536870912 bytes"});
}

TEST(FileRendezvous, AMissingFolderIsNamed) {
  expect_contains(message_of<DistributedError>([] {
                    rendezvous::open_file("/no/such/folder/file", {0, 2, "run", 5s});
                  }),
                  {"cannot create /no/such/folder/file: No such file or directory"});
}

TEST(FileRendezvous, AnEmptyOrTornHeaderIsThatOfNobody) {
  for (const char* text : {"", "tutti rend", "tutti rendezvous 2\n\x50"}) {
    const TemporaryFile file("begun");
    std::ofstream(file.path) << text;
    chmod(file.path.c_str(), 0600);
    EXPECT_THROW(rendezvous::open_file(file.path, {1, 2, "run", 50ms}), TimeoutError);
    const auto zero = rendezvous::open_file(file.path, {0, 2, "run", 5s}),
               one = rendezvous::open_file(file.path, {1, 2, "run", 5s});
    zero->set("a", "1");
    EXPECT_EQ(one->list(""), (rendezvous::Values{{"a", "1"}}));
  }
}

TEST(FileRendezvous, TheFileOfAKilledRankZeroIsReplaced) {
  const TemporaryFile file("killed");
  const std::string at = "file:" + file.path;
  {
    std::vector<Process> ranks;
    for (const int rank : {0, 1}) ranks.push_back(Rank{at, rank, 2, "run 1", 20s, true}.start());
    for (const Process& rank : ranks) expect_contains(rank.line(), {"met: "});
    ranks[0].signal(SIGKILL);  // rank 1 goes on reading the file
    std::this_thread::sleep_for(100ms);
    // Of the next run, rank 1 comes first: it waits, although the old file bears its run id.
    Process one = Rank{at, 1, 2}.start();
    std::this_thread::sleep_for(300ms);
    Process zero = Rank{at, 0, 2}.start();
    for (Process* rank : {&one, &zero}) {
      EXPECT_EQ(rank->line(), "met: [the name of 0] [the name of 1]");
      EXPECT_EQ(rank->exit_code(), 0);
    }
    expect_contains(ranks[1].line(), {"error: rendezvous: " + file.path});
  }
  EXPECT_FALSE(std::filesystem::exists(file.path));
}

TEST(FileRendezvous, ARankOfAReplacedRunLeavesTheNewFileAlone) {
  const TemporaryFile file("survivor");
  Process killed = Rank{"file:" + file.path, 0, 2, "run 1", 20s, true}.start();
  const auto survivor = rendezvous::open_file(file.path, {1, 2, "run 1", 5s});
  survivor->set("old", std::string(1000, 'o'));
  killed.signal(SIGKILL);
  killed.exit_code();
  const auto zero = rendezvous::open_file(file.path, {0, 2, "run 1", 5s});
  zero->set("new", std::string(5000, 'n'));
  const std::string before = contents_of(file.path);
  for (int i = 0; i < 3; ++i)
    expect_contains(message_of<DistributedError>([&] { survivor->set("old", "1"); }),
                    {file.path + " belongs to another run now", "start this run again"});
  EXPECT_EQ(contents_of(file.path), before);
  EXPECT_EQ(zero->list("").size(), 1u);
}

TEST(FileRendezvous, TheFileOfARunningRankZeroIsNot) {
  const TemporaryFile file("running");
  const auto zero = rendezvous::open_file(file.path, {0, 2, "run", 5s});
  expect_contains(message_of<DistributedError>([&] {
                    rendezvous::open_file(file.path, {0, 2, "run", 5s});
                  }),
                  {"belongs to run 'run', whose rank 0 is the running process",
                   fmt::format("{}", getpid()), "name another file"});
  zero->set("a", "1");
  EXPECT_EQ(zero->list("").size(), 1u);
}

TEST(FileRendezvous, TheFileOfAnotherHostIsLeftToTheUser) {
  const TemporaryFile file("far");
  leave_file(file.path, "old run", 2, process_of_another_host());
  const std::string before = contents_of(file.path);
  expect_contains(message_of<DistributedError>([&] {
                    rendezvous::open_file(file.path, {0, 2, "run", 5s});
                  }),
                  {"belongs to run 'old run', whose rank 0 was process 17 of host far-away",
                   "remove it if that run is over"});
  EXPECT_EQ(contents_of(file.path), before);
}

TEST(FileRendezvous, TheFileOfAnotherRunOnAnotherHostIsWaitedOut) {
  const TemporaryFile file("other_run");
  for (const auto& [run_id, size] : {std::pair{"old run", 2}, std::pair{"run", 3}}) {
    leave_file(file.path, run_id, size, process_of_another_host());
    expect_contains(message_of<TimeoutError>([&] {
                      rendezvous::open_file(file.path, {1, 2, "run", 100ms});
                    }),
                    {"waited 100 ms for " + file.path,
                     size == 2 ? "belongs to run 'old run', this process to run 'run'"
                               : "was made for 3 ranks, this one was started for 2"});
  }
}

// Nobody can tell on this host whether a process of another one has ended.
TEST(FileRendezvous, ARunOfAnotherHostThatLooksOverIsWaitedOut) {
  const TemporaryFile file("restart");
  for (const char* key : {"names/1", "failure"}) {
    leave_file(file.path, "run", 2, process_of_another_host());
    std::string record;
    rendezvous::write_text(record, key);
    rendezvous::write_text(record, "of the last attempt");
    std::ofstream(file.path, std::ios::app | std::ios::binary) << record;
    expect_contains(message_of<TimeoutError>([&] {
                      rendezvous::open_file(file.path, {1, 2, "run", 100ms});
                    }),
                    {"waited 100 ms for " + file.path, "rank 0 on host far-away",
                     "has failed or has a rank 1 already; remove it"});
    std::shared_ptr<rendezvous::Store> zero;
    const std::jthread restart([&] {
      std::this_thread::sleep_for(100ms);
      std::filesystem::remove(file.path);  // as the rank 0 on that host would
      zero = rendezvous::open_file(file.path, {0, 2, "run", 5s});
      zero->set("a", "1");
    });
    const auto one = rendezvous::open_file(file.path, {1, 2, "run", 5s});
    for (int i = 0; i < 500 && one->list("a").empty(); ++i) std::this_thread::sleep_for(10ms);
    EXPECT_EQ(one->list(""), (rendezvous::Values{{"a", "1"}})) << key;
  }
}

TEST(FileRendezvous, ARunOfAnotherHostThatHasNotBegunIsJoined) {
  const TemporaryFile file("joined");
  leave_file(file.path, "run", 2, process_of_another_host());
  EXPECT_EQ(rendezvous::open_file(file.path, {1, 2, "run", 5s})->put("names/1", "one"), "one");
}

TEST(FileRendezvous, ProcessesAreToldApart) {
  using rendezvous::ProcessStatus;
  const rendezvous::ProcessIdentity own = rendezvous::own_identity();
  EXPECT_EQ(status_of(own), ProcessStatus::runs);
  rendezvous::ProcessIdentity other = own;
  other.started = "1";  // the number of a process that has ended was given to another one
  EXPECT_EQ(status_of(other), ProcessStatus::ended);
  other = own;
  other.pid = "999999999";
  EXPECT_EQ(status_of(other), ProcessStatus::ended);
  EXPECT_EQ(status_of(process_of_another_host()), ProcessStatus::unknown);
  other = own;
  other.host = "far-away";  // two hosts can have one boot id: clones of a virtual machine
  EXPECT_EQ(status_of(other), ProcessStatus::unknown);
  other = own;
  other.numbering = "";  // neither of the two hosts has /proc
  EXPECT_EQ(status_of(other), ProcessStatus::unknown);
  other = own;
  other.pid = "no number";
  EXPECT_EQ(status_of(other), ProcessStatus::unknown);
}

TEST(FileRendezvous, ADamagedRecordIsAnError) {
  const TemporaryFile file("damaged");
  const auto zero = rendezvous::open_file(file.path, {0, 2, "run", 5s});
  std::string record;
  rendezvous::write_text(record, std::string(2000, 'k'));  // longer than any key
  rendezvous::write_text(record, "value");
  std::ofstream(file.path, std::ios::app | std::ios::binary) << record;
  expect_contains(message_of<DistributedError>([&] { zero->list(""); }),
                  {file.path + " is damaged", "a key of at most 1024 bytes"});
}

TEST(FileRendezvous, TheFileDoesNotGrowForEver) {
  const TemporaryFile file("growth");
  const auto zero = rendezvous::open_file(file.path, {0, 2, "run", 5s}),
             one = rendezvous::open_file(file.path, {1, 2, "run", 5s});
  zero->set("first", "kept");
  std::uintmax_t largest = 0;
  for (int i = 0; i < 1000; ++i) {  // 20 MB of records
    const auto& writer = i % 300 < 200 ? zero : one;
    writer->set("state", fmt::format("{:20000}", i));
    largest = std::max(largest, std::filesystem::file_size(file.path));
    if (i % 7 == 0) {
      EXPECT_EQ(one->list("state").at("state"), zero->list("state").at("state")) << i;
    }
  }
  EXPECT_LT(largest, 1'200'000u);
  EXPECT_EQ(one->list("first").at("first"), "kept");
  EXPECT_EQ(one->list(""), zero->list(""));
}

// Writes so much that the file is written anew.
void write_much(rendezvous::Store& store) {
  for (int i = 0; i < 60; ++i) store.set("state", fmt::format("{:20000}", i));
}

TEST(FileRendezvous, AFileThatRankZeroHasRemovedStaysRemoved) {
  const TemporaryFile file("removed");
  auto zero = rendezvous::open_file(file.path, {0, 2, "run", 5s});
  const auto one = rendezvous::open_file(file.path, {1, 2, "run", 5s});
  zero.reset();
  write_much(*one);
  EXPECT_FALSE(std::filesystem::exists(file.path));
  EXPECT_EQ(one->list("state").at("state"), fmt::format("{:20000}", 59));
}

TEST(FileRendezvous, RankZeroRemovesTheFileThatHasReplacedItsOwn) {
  const TemporaryFile file("compacted");
  auto zero = rendezvous::open_file(file.path, {0, 2, "run", 5s});
  const auto one = rendezvous::open_file(file.path, {1, 2, "run", 5s});
  write_much(*one);  // rank 0 does not read meanwhile
  ASSERT_LT(std::filesystem::file_size(file.path), 1'000'000u);
  zero.reset();
  EXPECT_FALSE(std::filesystem::exists(file.path));
}

TEST(FileRendezvous, AReplacedFileThatIsLockedForLongIsReadFromItsBeginningLater) {
  const TemporaryFile file("locked");
  const auto zero = rendezvous::open_file(file.path, {0, 2, "run", 5s}),
             one = rendezvous::open_file(file.path, {1, 2, "run", 50ms});
  write_much(*zero);
  zero->set("after", "1");
  {
    const FileDescriptor stopped(open(file.path.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(flock(stopped.get(), LOCK_EX), 0);
    expect_contains(message_of<TimeoutError>([&] { one->list(""); }), {"stayed locked for 50 ms"});
  }
  EXPECT_EQ(one->list(""), zero->list(""));
}

}  // namespace
}  // namespace tutti
