#include "socket.h"

#include "../../../core/error.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace tutti::distributed::rendezvous {
namespace {

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  Address() = default;
  Address(const sockaddr* from, socklen_t bytes) : size(bytes) {
    std::memcpy(&storage, from, bytes);
  }
  bool operator==(const Address& other) const {
    return size == other.size && std::memcmp(&storage, &other.storage, size) == 0;
  }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  bool is_ipv6() const { return storage.ss_family == AF_INET6; }
  in_port_t& port() {
    return is_ipv6() ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                     : reinterpret_cast<sockaddr_in&>(storage).sin_port;
  }
  bool is_any() const {
    return is_ipv6()
               ? IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr)
               : reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr == INADDR_ANY;
  }
  bool is_loopback() const {
    return is_ipv6()
               ? IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr)
               : ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr) >> 24 == 127;
  }
};

Address any_address(int family) {
  Address address;
  address.storage.ss_family = static_cast<sa_family_t>(family);  // all other bytes 0: any address
  address.size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return address;
}

bool is_number(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), bytes) == 1;
}

// Adds an address unless it is there already: a name may lead to one address twice, and two network
// interfaces may have the same one, but it can be bound once only.
void add_once(std::vector<Address>& addresses, const Address& address) {
  if (std::find(addresses.begin(), addresses.end(), address) == addresses.end())
    addresses.push_back(address);
}

// Returns the addresses to listen on, see listen_on().
std::vector<Address> choose_addresses(const std::vector<std::string>& hosts,
                                      bool may_listen_on_all) {
  std::vector<Address> own;
  bool is_meant_for_this_host = true;
  std::string why = "none of its addresses belongs to this host";
  for (const std::string& host : hosts) {
    const Addresses found = resolve(host, 0, why);
    for (const addrinfo* each = found.get(); each; each = each->ai_next)
      if (is_own_address(each->ai_addr, each->ai_addrlen))
        add_once(own, Address(each->ai_addr, each->ai_addrlen));
    if (!is_number(host) && host != "localhost") is_meant_for_this_host = false;
  }
  const bool is_loopback =
      std::all_of(own.begin(), own.end(), [](const Address& a) { return a.is_loopback(); });
  if (may_listen_on_all && (own.empty() || (is_loopback && !is_meant_for_this_host)))
    return {any_address(AF_INET6), any_address(AF_INET)};
  if (own.empty())
    fail<DistributedError>(
        "rendezvous: rank 0 cannot listen at '{}': {}. Give the address of rank 0's host "
        "(MASTER_ADDR), or give every rank a secret (TUTTI_RENDEZVOUS_SECRET_FILE), with which "
        "rank 0 listens on all addresses",
        hosts.front(), why);
  return own;
}

// Returns a listening socket, or none, with the reason in errno.
FileDescriptor listen_at(Address& address) {
  const int on = 1;
  FileDescriptor listener(
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener.is_open()) return {};
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.is_ipv6())  // IPv4 has a socket of its own
    setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  if (bind(listener.get(), address.get(), address.size) != 0 || listen(listener.get(), 1024) != 0) {
    const int why = errno;
    listener = FileDescriptor();
    errno = why;
    return {};
  }
  getsockname(listener.get(), address.get(), &address.size);
  return listener;
}

// Listens on all addresses that exist, on one port. Returns none where the port is taken on one of
// them or none exists; errno then says why.
Listeners listen_at_all(std::vector<Address> addresses, int port) {
  Listeners listeners{.port = port};
  int why = EADDRNOTAVAIL;
  for (Address& address : addresses) {
    address.port() = htons(static_cast<std::uint16_t>(listeners.port));
    FileDescriptor socket = listen_at(address);
    if (!socket.is_open()) {
      why = errno;
      if (why != EADDRINUSE) continue;  // such as an IPv6 address where IPv6 is off
      listeners.sockets.clear();
      break;
    }
    listeners.port = ntohs(address.port());
    listeners.sockets.push_back(std::move(socket));
  }
  errno = why;
  return listeners;
}

}  // namespace

Addresses resolve(const std::string& host, int port, std::string& why) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    why = gai_strerror(code);
    found = nullptr;
  }
  return Addresses(found, [](addrinfo* addresses) {
    if (addresses) freeaddrinfo(addresses);
  });
}

bool is_own_address(const sockaddr* address, socklen_t size) {
  Address probe(address, size);
  if (probe.is_any()) return true;
  probe.port() = 0;
  const FileDescriptor socket(
      ::socket(probe.storage.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  return socket.is_open() && bind(socket.get(), probe.get(), probe.size) == 0;
}

Listeners listen_on(const std::vector<std::string>& hosts, int port, bool may_listen_on_all) {
  const std::vector<Address> addresses = choose_addresses(hosts, may_listen_on_all);
  // A port that the system chooses for one address may be taken on another one.
  for (int tries = port == 0 ? 20 : 1; tries > 0; --tries) {
    Listeners listeners = listen_at_all(addresses, port);
    if (!listeners.sockets.empty()) return listeners;
  }
  if (errno == EADDRINUSE)
    fail<DistributedError>(
        "rendezvous: port {} is taken on the host of rank 0, maybe by another run; give another "
        "one (MASTER_PORT)",
        port);
  fail<DistributedError>("rendezvous: cannot listen on port {}: {}", port, std::strerror(errno));
}

void set_connection_options(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

std::string peer_address(int fd) {
  Address address = any_address(AF_INET6);
  char host[NI_MAXHOST] = "?";
  if (getpeername(fd, address.get(), &address.size) == 0)
    getnameinfo(address.get(), address.size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return host;
}

}  // namespace tutti::distributed::rendezvous
