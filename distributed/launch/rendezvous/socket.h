// Socket: a TCP socket that closes itself, and what the server and the client of a TCP store do
// with one below the level of messages.
#pragma once

#include <string>
#include <utility>

namespace tutti::distributed::rendezvous {

/// Owns a file descriptor; -1 is none.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

/// A non-blocking socket that listens on `port`.
struct Listener {
  Socket socket;
  int port = 0;
};

/// Listens on every address of this host, of IPv4 and IPv6, because the name by which others reach
/// this host may lead here through any of them; or on 127.0.0.1 alone. Port 0 lets the system
/// choose one. Throws a DistributedError.
Listener listen_on(int port, bool only_this_host);

/// Makes a connection send small messages at once, and detect a peer whose host is gone.
void set_connection_options(int fd);

/// Returns the numeric address of the other end, "?" where it is unknown.
std::string peer_address(int fd);

}  // namespace tutti::distributed::rendezvous
