// Runs the program train_resnet as a user does, and keeps what it prints and its exit code.
#pragma once

#include "temporary_folder.h"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace tutti::test {

struct Outcome {
  int code;  ///< -1 where a signal ended the program
  std::string output;
};

inline Outcome output_of(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  std::string output;
  std::array<char, 4096> buffer;
  while (const std::size_t n = fread(buffer.data(), 1, buffer.size(), pipe))
    output.append(buffer.data(), n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

/// Runs the trainer with the arguments; `stream` 1 keeps standard output, 2 standard error.
inline Outcome run_trainer(const std::string& arguments, int stream) {
  return output_of(std::string(TRAIN_RESNET) + " " + arguments +
                   (stream == 2 ? " 2>&1 >/dev/null" : " 2>/dev/null"));
}

/// A trainer that runs beside the test. Its output goes to the file `path`.log.
class RunningTrainer {
 public:
  RunningTrainer(const std::string& arguments, const std::string& path) : log_(path + ".log") {
    const std::string command = std::string("exec ") + TRAIN_RESNET + " " + arguments + " >'" +
                                log_ + "' 2>&1";
    child_ = fork();
    if (child_ == 0) {
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
  }
  ~RunningTrainer() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  RunningTrainer(const RunningTrainer&) = delete;
  RunningTrainer& operator=(const RunningTrainer&) = delete;

  pid_t process() const { return child_; }
  void send(int signal) const { kill(child_, signal); }
  std::string output() const { return content(log_); }
  /// Waits for the end. Returns what waitpid() says of it.
  int status() {
    int result = 0;
    waitpid(child_, &result, 0);
    child_ = -1;
    return result;
  }
  /// Waits until `condition` holds. Returns false where the trainer ends before, or after a minute.
  template <class Condition>
  bool wait_until(const Condition& condition) const {
    for (int i = 0; i < 6000; ++i) {
      if (condition()) return true;
      siginfo_t info = {};
      waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT);
      if (info.si_pid != 0) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  std::string log_;
  pid_t child_ = -1;
};

}  // namespace tutti::test
