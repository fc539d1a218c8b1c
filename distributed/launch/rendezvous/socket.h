// What the server and the client of a TCP store do with a socket below the level of messages.
#pragma once

#include "../../../core/file_descriptor.h"

#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

struct addrinfo;

namespace tutti::distributed::rendezvous {

/// Non-blocking sockets that listen on one port, one for each address of this host.
struct Listeners {
  std::vector<FileDescriptor> sockets = {};
  int port = 0;
};

/// Listens on those of the hosts' addresses that are this host's. Port 0 lets the system choose
/// one. Where the name of this host leads to its loopback address only, as on Debian, or a name
/// leads to an address that other hosts use (a service, a forwarded port), it listens on all
/// addresses if `may_listen_on_all`. Throws a DistributedError.
Listeners listen_on(const std::vector<std::string>& hosts, int port, bool may_listen_on_all);

/// The addresses of a host name.
using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;
/// Returns the addresses of a name; null, with the reason in `why`, where there are none.
Addresses resolve(const std::string& host, int port, std::string& why);

/// Returns whether an address belongs to this host.
bool is_own_address(const sockaddr* address, socklen_t size);

/// Makes a connection send small messages at once, and detect a peer whose host is gone.
void set_connection_options(int fd);

/// Returns the numeric address of the other end, "?" where it is unknown.
std::string peer_address(int fd);

}  // namespace tutti::distributed::rendezvous
