// What the tests of the rendezvous share: ranks that are processes, files, and raw connections to
// rank 0.
#pragma once

#include "process.h"

#include <fmt/core.h>

#include <chrono>
#include <filesystem>
#include <thread>

namespace tutti::test {

using namespace std::chrono_literals;

// A rank of rendezvous_rank.cpp.
struct Rank {
  std::string address;
  int rank, size;
  std::string run_id = "run 1";
  std::chrono::milliseconds timeout = 20s;
  bool stay = false;
  std::string secret = {};

  Process start() const {
    std::vector<std::string> command = {
        RENDEZVOUS_RANK,      address, std::to_string(rank),
        std::to_string(size), run_id,  std::to_string(timeout.count())};
    if (stay) command.push_back("stay");
    return Process(command, {"TUTTI_RENDEZVOUS_SECRET=" + secret});
  }
};

// The path of a file that does not exist yet, and is removed at the end.
struct TemporaryFile {
  explicit TemporaryFile(const char* name)
      : path((std::filesystem::temp_directory_path() /
              fmt::format("tutti_rendezvous_{}_{}", getpid(), name))
                 .string()) {
    std::filesystem::remove(path);
  }
  ~TemporaryFile() { std::filesystem::remove(path); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path;
};

inline sockaddr_in local_address(const std::string& port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
  return address;
}

// Connects to rank 0, which may still be starting.
inline int connect_to_rank_0(const std::string& port) {
  const sockaddr_in address = local_address(port);
  for (int i = 0; i < 1000; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
    close(fd);
    std::this_thread::sleep_for(10ms);
  }
  throw std::runtime_error("rank 0 does not listen");
}

}  // namespace tutti::test
