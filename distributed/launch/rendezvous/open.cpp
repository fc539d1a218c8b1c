// Opens the kind of store that an address asks for, a store in memory, or one over a process group.
#include "../../broadcast_text.h"
#include "store.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

#include <charconv>
#include <random>

namespace tutti::distributed::rendezvous {
namespace {

class MemoryStore : public Store {
 public:
  MemoryStore(std::shared_ptr<SharedTable> table, const Member& member)
      : Store(member), table_(std::move(table)) {}
  std::string where() const override { return "this process"; }
  Values request(const Request& request) override {
    const std::lock_guard lock(table_->mutex);
    return table_->table.apply(request);
  }

 private:
  std::shared_ptr<SharedTable> table_;
};

// Returns the addresses at which this host may be reached. The loopback address comes first: for
// ranks on this host it is the fastest, and on another host it leads to nobody of this run, which
// the run id in the greeting shows.
std::vector<std::string> own_addresses() {
  std::vector<std::string> loopback = {"127.0.0.1"}, others;
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
        others.push_back(address);
    }
    freeifaddrs(list);
  }
  loopback.insert(loopback.end(), others.begin(), others.end());
  return loopback;
}

std::string random_run_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ' ') words.emplace_back();
    else words.back() += c;
  }
  return words;
}

}  // namespace

std::shared_ptr<Store> open(const std::string& address, const Member& member) {
  if (address.starts_with("file:")) return open_file(address.substr(5), member);
  const auto colon = address.rfind(':');
  int port = 0;
  if (colon != std::string::npos)
    std::from_chars(address.data() + colon + 1, address.data() + address.size(), port);
  if (colon == 0 || port < 1 || port > 65535)
    fail<ValueError>("rendezvous: expected an address HOST:PORT or file:PATH, got '{}'", address);
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);  // an IPv6 address: [::1]:29500
  return member.rank == 0 ? serve_tcp(host, port, member) : connect_tcp({host}, port, member);
}

std::shared_ptr<Store> in_memory(std::shared_ptr<SharedTable> table, const Member& member) {
  return std::make_shared<MemoryStore>(std::move(table), member);
}

std::shared_ptr<Store> over(const ProcessGroup& group, std::chrono::milliseconds timeout) {
  Member member{group.rank(), group.size(), {}, timeout};
  if (group.rank() == 0) {
    member.run_id = random_run_id();
    auto store = serve_tcp("", 0, member);
    // PORT RUN_ID ADDRESS...
    std::string message = store->where().substr(store->where().rfind(':') + 1) + " " +
                          member.run_id;
    for (const std::string& address : own_addresses()) message += " " + address;
    broadcast_text(group, message, "rendezvous");
    return store;
  }
  const std::vector<std::string> words = split_words(broadcast_text(group, {}, "rendezvous"));
  member.run_id = words[1];
  return connect_tcp({words.begin() + 2, words.end()}, std::atoi(words[0].c_str()), member);
}

}  // namespace tutti::distributed::rendezvous
