#include "store.h"

#include "../../broadcast_text.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <random>
#include <thread>

namespace tutti::distributed::rendezvous {
namespace {

constexpr const char* failure_key = "failure";

CollectiveInfo info(const Member& member) {
  return {.rank = member.rank, .world_size = member.size, .operation = "rendezvous", .name = {}};
}

Failure decode(const std::string& text) {
  const auto newline = text.find('\n');
  return {.at = text.substr(1, newline - 1),
          .what = text.substr(newline + 1),
          .timeout = text[0] == 't'};
}

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

// By which names other hosts may reach this one: its addresses, those of this host only first (they
// are the fastest and lead nowhere from elsewhere, where the run id tells that nobody of this run
// is there).
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

}  // namespace

Values Table::apply(const Request& request) {
  Values found;
  switch (request.operation) {
    case Request::Operation::put:
      found.insert(*values.try_emplace(request.key, request.value).first);
      break;
    case Request::Operation::set:
      found.emplace(request.key, values[request.key] = request.value);
      break;
    case Request::Operation::list:
      for (auto it = values.lower_bound(request.key);
           it != values.end() && it->first.starts_with(request.key); ++it)
        found.insert(*it);
      break;
    case Request::Operation::leave: break;
  }
  return found;
}

std::string Store::put(const std::string& key, const std::string& value) {
  return request({Request::Operation::put, key, value}).at(key);
}

void Store::set(const std::string& key, const std::string& value) {
  request({Request::Operation::set, key, value});
}

Values Store::list(const std::string& prefix) {
  return request({Request::Operation::list, prefix});
}

std::optional<Failure> Store::failure() {
  const Values found = list(failure_key);
  return found.empty() ? std::nullopt : std::optional(decode(found.begin()->second));
}

Failure Store::fail(const Failure& why) {
  std::string at = why.at;
  std::replace(at.begin(), at.end(), '\n', ' ');
  return decode(put(failure_key, fmt::format("{}{}\n{}", why.timeout ? 't' : ' ', at, why.what)));
}

std::vector<std::string> Store::gather(const std::string& name, const std::string& value) {
  using namespace std::chrono_literals;
  const auto deadline = deadline_after(member_.timeout);
  const auto own = name + "/" + std::to_string(member_.rank);
  // Told apart by a number that no other process draws, or two of the same rank would pass for one.
  const std::string mine = fmt::format("{:08x} {}", std::random_device()(), value);
  if (put(own, mine) != mine)
    throw DistributedError(
        fmt::format("rendezvous at {}: another process has already come as rank {} of run '{}'; is "
                    "the rank set twice, or is this the store of an earlier run?",
                    where(), member_.rank, member_.run_id),
        info(member_));
  // Rank 0 looks who is there; the others wait for its word, which costs the store much less than
  // if all looked.
  const std::string complete = name + " complete";
  auto pause = 1ms;
  for (;;) {
    Values all;
    if (member_.rank == 0 || !list(complete).empty()) all = list(name + "/");
    if (static_cast<int>(all.size()) == member_.size) {
      if (member_.rank == 0) put(complete, "");
      std::vector<std::string> values;
      for (int rank = 0; rank < member_.size; ++rank)
        values.push_back(all.at(name + "/" + std::to_string(rank)).substr(9));
      return values;
    }
    if (const auto broken = failure())
      throw DistributedError(
          fmt::format("rendezvous at {}: the run has failed: {}", where(), broken->what),
          info(member_));
    if (std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, 50ms);
  }
  const Values present = list(name + "/");
  std::vector<int> absent;
  for (int rank = 0; rank < member_.size; ++rank)
    if (!present.contains(name + "/" + std::to_string(rank))) absent.push_back(rank);
  if (absent.empty())
    throw TimeoutError(fmt::format("rendezvous at {}: all {} ranks are there, but rank 0 did not "
                                   "say so within {}; look whether it hangs or has ended",
                                   where(), member_.size, distributed::to_string(member_.timeout)),
                       info(member_));
  throw TimeoutError(
      fmt::format("rendezvous at {}: {} of {} did not come within {}; look for one that hangs, has "
                  "ended, or was given another address or run id than '{}'",
                  where(), ranks_to_string(absent), member_.size,
                  distributed::to_string(member_.timeout), member_.run_id),
      info(member_));
}

std::shared_ptr<Store> in_memory(std::shared_ptr<SharedTable> table, const Member& member) {
  return std::make_shared<MemoryStore>(std::move(table), member);
}

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
    host = host.substr(1, host.size() - 2);  // [::1]:29500
  return member.rank == 0 ? serve_tcp(host, port, member) : connect_tcp({host}, port, member);
}

std::shared_ptr<Store> over(const ProcessGroup& group, std::chrono::milliseconds timeout) {
  Member member{group.rank(), group.size(), {}, timeout};
  if (group.rank() == 0) {
    std::random_device random;
    member.run_id = fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
    auto store = serve_tcp("", 0, member);
    std::string message = store->where().substr(store->where().rfind(':') + 1) + " " +
                          member.run_id;
    for (const std::string& address : own_addresses()) message += " " + address;
    broadcast_text(group, message, "rendezvous");
    return store;
  }
  std::vector<std::string> words(1);
  for (const char c : broadcast_text(group, {}, "rendezvous")) {
    if (c == ' ') words.emplace_back();
    else words.back() += c;
  }
  member.run_id = words[1];
  return connect_tcp({words.begin() + 2, words.end()}, std::atoi(words[0].c_str()), member);
}

}  // namespace tutti::distributed::rendezvous
