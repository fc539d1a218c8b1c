// Opens the kind of store that an address asks for, a store in memory, or one over a process group.
#include "../../../core/parse_number.h"
#include "../../broadcast_text.h"
#include "messages.h"
#include "secret.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

namespace tutti::distributed::rendezvous {
namespace {

class MemoryStore : public Store {
 public:
  MemoryStore(std::shared_ptr<SharedTable> table, const Member& member)
      : Store(member), table_(std::move(table)) {}
  std::string where() const override { return "this process"; }

 private:
  Values carry_out(const Request& request) override {
    const std::lock_guard lock(table_->mutex);
    return table_->table.apply(request);
  }

  std::shared_ptr<SharedTable> table_;
};

// Returns the addresses at which this host may be reached. The loopback address comes first: for
// ranks on this host it is the fastest, and on another host it leads to nobody of this run, which
// the greeting shows.
std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses = {"127.0.0.1"};
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) == 0) {
    for (const ifaddrs* each = list; each; each = each->ifa_next) {
      if (!each->ifa_addr) continue;
      const int family = each->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      char text[NI_MAXHOST];
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (getnameinfo(each->ifa_addr, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0)
        continue;
      const std::string address = text;
      if (!address.starts_with("127.") && address != "::1" && !address.starts_with("fe80:"))
        addresses.push_back(address);
    }
    freeifaddrs(list);
  }
  return addresses;
}

// Returns a port from 1 to 65535, or 0 where the text is none.
int parse_port(const std::string& text) { return parse_number(text, 1, 65535).value_or(0); }

}  // namespace

std::shared_ptr<Store> open(const std::string& address, const Member& member) {
  const auto colon = address.rfind(':');
  const int port = colon == std::string::npos ? 0 : parse_port(address.substr(colon + 1));
  if (colon == 0 || port == 0)
    fail<ValueError>("rendezvous: expected an address HOST:PORT, got '{}'", address);
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);  // an IPv6 address: [::1]:29500
  if (!member.secret.empty()) check_secret(member.secret, "the secret of this run");
  return member.rank == 0 ? serve_tcp({host}, port, member) : connect_tcp({host}, port, member);
}

std::shared_ptr<Store> in_memory(std::shared_ptr<SharedTable> table, const Member& member) {
  return std::make_shared<MemoryStore>(std::move(table), member);
}

// Rank 0 broadcasts where it listens, and the secret of the run: the port, the secret in
// hexadecimal digits, and the addresses.
std::shared_ptr<Store> over(const ProcessGroup& group, std::chrono::milliseconds timeout) {
  Member member{group.rank(), group.size(), {}, timeout};
  if (group.rank() == 0) {
    const std::vector<std::string> addresses = own_addresses();
    member.secret = to_hex(random_secret());
    auto store = serve_tcp(addresses, 0, member);
    Message invitation = {store->where().substr(store->where().rfind(':') + 1), member.secret};
    invitation.insert(invitation.end(), addresses.begin(), addresses.end());
    broadcast_text(group, framed(invitation), "rendezvous");
    return store;
  }
  const Message invitation = unframed(broadcast_text(group, {}, "rendezvous"));
  const int port = invitation.size() < 3 ? 0 : parse_port(invitation[0]);
  if (port == 0 || invitation[1].size() < min_secret_bytes)
    fail<DistributedError>(
        "rendezvous: expected rank 0 to broadcast a port, a secret and addresses, but got {} "
        "texts; do all ranks run the same program?",
        invitation.size());
  member.secret = invitation[1];
  return connect_tcp({invitation.begin() + 2, invitation.end()}, port, member);
}

}  // namespace tutti::distributed::rendezvous
