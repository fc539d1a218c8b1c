// Tests of AtomicFile: what it keeps of the old file, what it refuses to replace, what a failure
// leaves behind, and whose drafts it removes.
#include <tutti/core/atomic_file.h>
#include <tutti/core/error.h>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

namespace tutti {
namespace {

namespace fs = std::filesystem;

// Gives every test a folder of its own, which it removes afterwards.
class AtomicFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder = fs::path(::testing::TempDir()) /
             (std::string("tutti_atomic_") + info->name() + std::to_string(::getpid()));
    fs::create_directories(folder);
    path = folder / "file.txt";
  }
  void TearDown() override { fs::remove_all(folder); }

  std::string content(const fs::path& file) const {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }
  void put(const fs::path& file, const std::string& text) const { std::ofstream(file) << text; }
  // Returns the names of everything in the folder.
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder))
      found.insert(entry.path().filename().string());
    return found;
  }
  std::string error_of_write(const fs::path& target) const {
    try {
      write_file_atomically(target, "new");
    } catch (const FileError& error) {
      return error.what();
    }
    return "";
  }

  fs::path folder, path;
};

using Permissions = fs::perms;

TEST_F(AtomicFileTest, TheOldFileStaysUntilTheCommitAndTheDraftGoesWithTheWriter) {
  put(path, "old");
  {
    AtomicFile file(path);
    file.write("half", 4);
    EXPECT_EQ(content(path), "old");
    EXPECT_EQ(names().size(), 2u);
  }
  EXPECT_EQ(content(path), "old");
  EXPECT_EQ(names(), std::set<std::string>{"file.txt"});
  write_file_atomically(path, "new");
  EXPECT_EQ(content(path), "new");
  EXPECT_EQ(names(), std::set<std::string>{"file.txt"});
}

TEST_F(AtomicFileTest, PermissionsAreThoseOfTheOldFileOrOfTheUmask) {
  const mode_t old_umask = ::umask(027);
  write_file_atomically(path, "a");
  ::umask(old_umask);
  EXPECT_EQ(fs::status(path).permissions(), Permissions(0640));
  for (const unsigned mode : {0600u, 0644u, 0444u, 0755u}) {
    fs::permissions(path, Permissions(mode));
    AtomicFile file(path);
    for (const std::string& name : names())  // nobody can open the draft who cannot open the file
      if (name != "file.txt") {
        EXPECT_EQ(fs::status(folder / name).permissions() & ~Permissions(mode | 0600),
                  Permissions::none);
      }
    file.write("b", 1);
    file.commit();
    EXPECT_EQ(fs::status(path).permissions(), Permissions(mode));
  }
}

// A folder takes names of up to 255 bytes, and a draft's name has 23 more than its stem.
TEST_F(AtomicFileTest, NamesAsLongAsTheFolderTakesAreWritten) {
  for (const std::size_t size : {231u, 232u, 233u, 255u}) {
    const std::string name(size, 'n');
    write_file_atomically(folder / name, "whole");
    EXPECT_EQ(content(folder / name), "whole");
    EXPECT_EQ(names(), std::set<std::string>{name});
    put(folder / (name.substr(0, 232) + ".draft-0123456789abcdef"), "left by a dead writer");
    write_file_atomically(folder / name, "new");
    EXPECT_EQ(names(), std::set<std::string>{name}) << "the sweep finds drafts of long names";
    fs::remove(folder / name);
  }
}

TEST_F(AtomicFileTest, DraftsHaveUnpredictableNames) {
  const std::string prefix = "file.txt.draft-";
  std::vector<std::set<char>> digits(16);  // those seen at each position
  for (int i = 0; i < 20; ++i) {
    const AtomicFile first(path), second(path);
    EXPECT_EQ(names().size(), 2u);
    for (const std::string& name : names()) {
      ASSERT_EQ(name.substr(0, prefix.size()), prefix);
      ASSERT_EQ(name.size(), prefix.size() + digits.size());
      for (std::size_t d = 0; d < digits.size(); ++d) digits[d].insert(name[prefix.size() + d]);
    }
  }
  // 40 random digits are all the same with a probability of 16 to the power of -39.
  for (const std::set<char>& seen : digits) EXPECT_GT(seen.size(), 1u);
}

TEST_F(AtomicFileTest, RefusesToReplaceWhatIsNoRegularFile) {
  const auto expect = [&](const fs::path& target, const std::string& kind) {
    const std::string error = error_of_write(target);
    EXPECT_NE(error.find(kind), std::string::npos) << error;
    EXPECT_NE(error.find(target.string()), std::string::npos) << error;
  };
  fs::create_directory(folder / "folder");
  expect(folder / "folder", "a folder");
  expect(folder / "folder/", "a folder");
  expect(folder / "folder" / "..", "a folder");
  put(folder / "victim", "precious");
  fs::create_symlink("victim", folder / "link");
  expect(folder / "link", "a symbolic link");
  fs::create_symlink("nowhere", folder / "dangling");
  expect(folder / "dangling", "a symbolic link");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect(folder / "pipe", "a pipe");
  if (::mknod((folder / "device").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) {  // for root only
    expect(folder / "device", "a device");
    fs::remove(folder / "device");
  }
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string socket_path = folder / "socket";
  ASSERT_LT(socket_path.size(), sizeof address.sun_path);
  socket_path.copy(address.sun_path, socket_path.size());
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  expect(socket_path, "a socket");
  expect(folder / "absent" / "file", "No such file");
  EXPECT_NE(error_of_write(""), "");

  EXPECT_EQ(content(folder / "victim"), "precious");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_FALSE(fs::exists(folder / "nowhere"));
  EXPECT_EQ(names(),
            (std::set<std::string>{"folder", "victim", "link", "dangling", "pipe", "socket"}));
}

TEST_F(AtomicFileTest, ALinkThatAppearsMeanwhileIsReplacedAndNotFollowed) {
  put(folder / "victim", "precious");
  AtomicFile file(path);
  fs::create_symlink("victim", path);
  file.write("new", 3);
  file.commit();
  EXPECT_FALSE(fs::is_symlink(path));
  EXPECT_EQ(content(path), "new");
  EXPECT_EQ(content(folder / "victim"), "precious");
}

TEST_F(AtomicFileTest, WritesIntoTheFolderThatItOpenedEvenIfThatIsRenamed) {
  const fs::path before = folder / "before", after = folder / "after";
  fs::create_directory(before);
  AtomicFile file(before / "file.txt");
  fs::rename(before, after);
  file.write("new", 3);
  file.commit();
  EXPECT_EQ(content(after / "file.txt"), "new");
}

TEST_F(AtomicFileTest, RemovesDraftsOfDeadWritersOfThisFileOnly) {
  // A child dies in the middle of its draft, as a killed run does.
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(path);
    file.write("half", 4);
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(names().size(), 1u);
  const std::string dead = *names().begin();
  ASSERT_EQ(dead.find("file.txt.draft-"), 0u);

  // Names that are similar, but not those of a draft of this file.
  const std::set<std::string> others = {
      "file.txt.draft-",
      "file.txt.draft-0123456789abcdeg",
      "file.txt.draft-0123456789abcdef0",
      "file.txt2.draft-0123456789abcdef",
      "ile.txt.draft-0123456789abcdef",
  };
  for (const std::string& name : others) put(folder / name, "other");
  fs::create_symlink("file.txt2.draft-0123456789abcdef",
                     folder / "file.txt.draft-00000000deadbeef");
  fs::create_directory(folder / "file.txt.draft-000000000000d1ce");
  AtomicFile living(path);
  EXPECT_FALSE(fs::exists(folder / dead));
  write_file_atomically(path, "new");  // must leave the draft of `living` alone
  living.write("last", 4);
  living.commit();
  EXPECT_EQ(content(path), "last");

  std::set<std::string> expected = others;
  expected.insert(
      {"file.txt", "file.txt.draft-00000000deadbeef", "file.txt.draft-000000000000d1ce"});
  EXPECT_EQ(names(), expected);
}

TEST_F(AtomicFileTest, DeadDraftsOfAllFilesOfAFolderAreRemoved) {
  for (const char* name : {"a.draft-0123456789abcdef", "b.txt.draft-0000000000000000"})
    put(folder / name, "half");
  // A draft of nothing, a name that only resembles a draft, and a file of another kind.
  const std::set<std::string> others = {".draft-0123456789abcdef", "a.draft-0123", "a.txt"};
  for (const std::string& name : others) put(folder / name, "other");
  AtomicFile living(path);
  remove_dead_drafts(folder);
  EXPECT_EQ(names().size(), others.size() + 1);  // and the living draft
  living.write("new", 3);
  living.commit();
  EXPECT_EQ(content(path), "new");
  for (const std::string& name : others) EXPECT_TRUE(fs::exists(folder / name)) << name;
  remove_dead_drafts(folder / "nowhere");
}

TEST_F(AtomicFileTest, ADraftOfALivingProcessStays) {
  int ready[2], go_on[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(go_on), 0);
  const pid_t child = ::fork();
  char byte = 0;
  if (child == 0) {
    AtomicFile file(path);
    file.write("child", 5);
    if (::write(ready[1], &byte, 1) != 1 || ::read(go_on[0], &byte, 1) != 1) ::_exit(1);
    file.commit();
    ::_exit(0);
  }
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  write_file_atomically(path, "parent");
  EXPECT_EQ(names().size(), 2u);
  ASSERT_EQ(::write(go_on[1], &byte, 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(content(path), "child");
  for (const int end : {ready[0], ready[1], go_on[0], go_on[1]}) ::close(end);
}

TEST_F(AtomicFileTest, ManyWritersOfOneFileAllCommitAndLeaveNoDraft) {
  std::vector<std::jthread> writers;
  std::atomic<int> failures = 0;
  for (int w = 0; w < 8; ++w)
    writers.emplace_back([&, w] {
      for (int i = 0; i < 50; ++i) {
        try {
          write_file_atomically(path, std::string(1000, static_cast<char>('a' + w)));
        } catch (const FileError& error) {
          ++failures;
          ADD_FAILURE() << error.what();
        }
      }
    });
  writers.clear();
  EXPECT_EQ(failures, 0);
  const std::string text = content(path);
  EXPECT_EQ(text, std::string(1000, text.at(0)));
  EXPECT_EQ(names(), std::set<std::string>{"file.txt"});
}

// The limit of a file's size stands for a full disk: write() fails after some bytes.
TEST_F(AtomicFileTest, ADiskThatIsFullLeavesTheOldFileAndNamesIt) {
  put(path, "old");
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file_atomically(path, std::string(10000, 'x'));
    } catch (const FileError& error) {
      const std::string text = error.what();
      const bool is_named = text.find(path.string()) != std::string::npos &&
                            text.find("too large") != std::string::npos;
      ::_exit(is_named ? 7 : 8);
    }
    ::_exit(9);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(content(path), "old");
  EXPECT_EQ(names(), std::set<std::string>{"file.txt"});
}

}  // namespace
}  // namespace tutti
