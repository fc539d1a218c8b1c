// Processes for tests that start, stop and kill them, and ports for their rendezvous.
#pragma once

#include "../which_sanitizer.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

extern char** environ;

namespace tutti::test {

// A process and what it prints. The destructor kills it, so that no test leaves one behind.
class Process {
 public:
  /// Starts the command. `variables` ("NAME=value") override those of this process.
  explicit Process(std::vector<std::string> command, std::vector<std::string> variables = {}) {
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    for (char** variable = environ; *variable; ++variable) environment.push_back(*variable);
    environment.push_back(nullptr);
    if (posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environment.data()) !=
        0)
      throw std::runtime_error("spawn");
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    out_ = out[0];
  }
  Process(Process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), out_(std::exchange(other.out_, -1)) {}
  ~Process() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    if (out_ >= 0) close(out_);
  }
  /// Waits for its end. Returns its exit code, or minus the number of the signal that ended it.
  int exit_code() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void signal(int number) const { kill(pid_, number); }
  pid_t pid() const { return pid_; }
  int output() const { return out_; }  ///< The descriptor to poll().
  /// Returns the next line that it prints; empty at its end.
  std::string line() const {
    std::string text;
    for (char c = 0; read(out_, &c, 1) == 1 && c != '\n';) text += c;
    return text;
  }
  /// Returns everything else that it prints, up to its end.
  std::string rest() const {
    std::string text;
    for (char c = 0; read(out_, &c, 1) == 1;) text += c;
    return text;
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

// Whether all threads of this process but the calling one sleep.
inline bool other_threads_sleep() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::string stat;
    std::getline(std::ifstream(task.path() / "stat"), stat);
    if (const auto name = stat.rfind(')'); name != stat.npos && stat.at(name + 2) != 'S')
      return false;
  }
  return true;
}

// Forks a process whose other threads may be allocating memory. AddressSanitizer of GCC would leave
// its allocator locked in the child (which_sanitizer.h): there it forks once they sleep, in 10 s.
inline pid_t fork_beside_threads() {
  for (int i = 0; i < 10'000 && under_address_sanitizer && !other_threads_sleep(); ++i)
    usleep(1000);
  return fork();
}

// Waits for a child of fork(), which must end by itself with this exit code.
inline void expect_exit(pid_t child, int code) {
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), code);
}

// A listening socket on 127.0.0.1. Its port is below those that the system gives to sockets that
// ask for none: another test may be given one of them at any moment after this one is closed.
struct Listener {
  Listener() : fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::random_device random;
    for (int tries = 0; tries < 100; ++tries) {
      port = std::uniform_int_distribution(10000, 32000)(random);
      address.sin_port = htons(static_cast<std::uint16_t>(port));
      if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
          listen(fd, 8) == 0)
        return;
    }
    throw std::runtime_error("listen");
  }
  ~Listener() { close(fd); }
  int fd, port = 0;
};

// Returns a port that was free a moment ago.
inline std::string free_port() { return std::to_string(Listener().port); }

}  // namespace tutti::test
