#include "socket.h"

#include "../../../core/error.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace tutti::distributed::rendezvous {
namespace {

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int port() const {
    return ntohs(storage.ss_family == AF_INET6
                     ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                     : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
  }
};

Address ipv6_address(int port) {
  Address address{.size = sizeof(sockaddr_in6)};
  auto& in6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(static_cast<std::uint16_t>(port));
  in6.sin6_addr = in6addr_any;
  return address;
}

Address ipv4_address(int port, bool only_this_host) {
  Address address{.size = sizeof(sockaddr_in)};
  auto& in = reinterpret_cast<sockaddr_in&>(address.storage);
  in.sin_family = AF_INET;
  in.sin_port = htons(static_cast<std::uint16_t>(port));
  in.sin_addr.s_addr = htonl(only_this_host ? INADDR_LOOPBACK : INADDR_ANY);
  return address;
}

// Returns a listening socket, or none, with the reason in errno.
Socket listen_at(Address& address) {
  const int family = address.storage.ss_family, on = 1, off = 0;
  Socket listener(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (listener.fd() < 0) return {};
  setsockopt(listener.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (family == AF_INET6)  // an IPv6 socket then accepts IPv4 connections, too
    setsockopt(listener.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(listener.fd(), address.get(), address.size) != 0 || listen(listener.fd(), 1024) != 0) {
    const int why = errno;
    listener = Socket();
    errno = why;
    return {};
  }
  getsockname(listener.fd(), address.get(), &address.size);
  return listener;
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Listener listen_on(int port, bool only_this_host) {
  for (const bool ipv6 : {true, false}) {
    if (ipv6 && only_this_host) continue;
    Address address = ipv6 ? ipv6_address(port) : ipv4_address(port, only_this_host);
    if (Socket listener = listen_at(address); listener.fd() >= 0)
      return {std::move(listener), address.port()};
    if (errno == EADDRINUSE)
      fail<DistributedError>(
          "rendezvous: port {} is taken on the host of rank 0, maybe by another run; give another "
          "one (MASTER_PORT)",
          port);
  }
  fail<DistributedError>("rendezvous: cannot listen on port {}: {}", port, std::strerror(errno));
}

void set_connection_options(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

std::string peer_address(int fd) {
  Address address{.size = sizeof(sockaddr_storage)};
  char host[NI_MAXHOST] = "?";
  if (getpeername(fd, address.get(), &address.size) == 0)
    getnameinfo(address.get(), address.size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return host;
}

}  // namespace tutti::distributed::rendezvous
